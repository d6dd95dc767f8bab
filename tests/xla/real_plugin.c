/* Where the CPU plugin of the tests is: see real_plugin.h. */
#define _GNU_SOURCE
#include "real_plugin.h"

#include "golden/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define WATCHED_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WATCHED_THREADS 1
#endif
#endif

const char *mxc_real_plugin(void) {
#ifndef MLXCEL_XLA_DEVICE_RUNTIME
    (void)fprintf(stderr, "skipped: this build has no device runtime\n");
    return NULL; /* nothing can be run on a plugin, wherever there is one */
#elif defined WATCHED_THREADS
    (void)fprintf(stderr, "skipped: ThreadSanitizer takes what a plugin's threads do for races\n");
    return NULL; /* it was built without the sanitizer */
#else
    static const char set_up[] = MXC_TEST_DATA "/../../build/xla/cpu.so";
    const char *path = getenv("MLXCEL_XLA_PLUGIN");
    if (path && *path)
        return path;
    if (!access(set_up, R_OK))
        return set_up;
    (void)fprintf(stderr, "skipped: no PJRT plugin (./dev setup gets one; MLXCEL_XLA_PLUGIN)\n");
    return NULL;
#endif
}

const char *mxc_real_cache(void) {
    static const char set_up[] = MXC_TEST_DATA "/../../build/xla";
    const char *path = getenv("MLXCEL_XLA_CACHE");
    if (path)
        return *path ? path : NULL;
    return access(set_up, W_OK) ? NULL : MXC_TEST_DATA "/../../build/xla/programs";
}

bool mxc_real_all(void) {
    return !CHECKPOINT_SAMPLE && (getenv("MXC_XLA_ALL") || getenv("MLXCEL_TEST_EVERY"));
}
