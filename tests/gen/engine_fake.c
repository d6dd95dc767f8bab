/* The engine tests' fake backend, for tests that need an engine below the text side. */
#include "../engine/fake_backend.c"
