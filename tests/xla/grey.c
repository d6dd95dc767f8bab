/* A prompt with a grey picture, as the tests of engine/ have it. */
#include "../engine/grey.c" /* NOLINT(bugprone-suspicious-include) */
