/* The backend tests' runner, compiled for this folder's programs too (a test folder is linked from
 * its own files only). */
#include "backend/runner.c" /* NOLINT(bugprone-suspicious-include) */
