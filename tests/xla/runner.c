/* Runs sequences through a plan, as the tests of backend/ do. */
#include "../backend/runner.c" /* NOLINT(bugprone-suspicious-include) */
