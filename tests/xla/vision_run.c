/* Runs checkpoints that see, as the tests of golden/ do. */
#include "../golden/vision_run.c" /* NOLINT(bugprone-suspicious-include) */
