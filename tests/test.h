/* What every cmocka test needs, in the order cmocka needs it. */
#ifndef MXC_TESTS_TEST_H
#define MXC_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
