/* Scratch files, as the tests of format/ make them. */
#include "../format/files.c" /* NOLINT(bugprone-suspicious-include) */
