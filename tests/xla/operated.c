/* Models with operations on their weights, as the tests of engine/ open them. */
#include "../engine/operated.c" /* NOLINT(bugprone-suspicious-include) */
