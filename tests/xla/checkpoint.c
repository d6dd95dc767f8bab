/* Golden checkpoints, as the tests of golden/ open them. */
#include "../golden/checkpoint.c" /* NOLINT(bugprone-suspicious-include) */
