/* Mini models for tests, as those of backend/ have them. */
#include "../backend/mini.c"
