/* Opens checkpoints that see, as the tests of models/ do. */
#include "../models/vlm.c"
