/* Towers for tests, as those of backend/ have them. */
#include "../backend/towers.c"
