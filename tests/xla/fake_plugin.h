/* Fake plugin: a PJRT plugin for tests, built as a shared object of its own (MXC_FAKE_PLUGIN is its
 * path). It compiles nothing: of a program's text it reads the signature of @main, and a run gives
 * zeros, but for results that take over a donated argument's memory (tf.aliasing_output), which
 * keep what was in it. It counts and checks how it is used, and fails where a test wants it to. A
 * test reaches the control by mxc_fake_plugin_open (fake_control.c): the same one that the client
 * under test uses, as a library is loaded once in a process. Reset it first; reset at the end tells
 * what was left over. One thread at a time.
 * In another program: the device is lost after MXC_FAKE_LOSE_AFTER runs, and the file
 * MXC_FAKE_REPORT gets a line of counts at the end. */
#ifndef MXC_TESTS_FAKE_PLUGIN_H
#define MXC_TESTS_FAKE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fake_call {
    FAKE_INITIALIZE,
    FAKE_CREATE,
    FAKE_PLATFORM_NAME,
    FAKE_PLATFORM_VERSION,
    FAKE_DEVICES,
    FAKE_DESCRIPTION,
    FAKE_KIND,
    FAKE_DEBUG_STRING,
    FAKE_MEMORY_STATS,
    FAKE_COMPILE,
    FAKE_GET_EXECUTABLE,
    FAKE_NUM_OUTPUTS,
    FAKE_COMPILED_MEMORY,
    FAKE_SERIALIZE,
    FAKE_DESERIALIZE,
    FAKE_FROM_HOST,
    FAKE_VIEW,
    FAKE_EXECUTE,
    FAKE_TO_HOST,
    FAKE_AWAIT,
    FAKE_N_CALLS /* those that can fail; destroying does not */
};

struct fake_plugin {
    /* ---- what a test sets before a client is opened ---- */
    int major, minor;
    size_t struct_size; /* of the table; 0: the whole */
    bool no_table;      /* GetPjrtApi gives NULL */
    bool no_execute;    /* the table has no Execute */
    const char *platform;
    int n_devices;       /* when the client's options do not say */
    int64_t memory;      /* limit of a device */
    bool no_cpu_option;  /* refuses cpu_device_count */
    bool no_gpu_option;  /* refuses visible_devices */
    bool no_scheduler;   /* refuses the flag xla_cpu_scheduler_type */
    bool no_serialize;   /* cannot serialise */
    bool no_view;        /* refuses views of host memory */
    int n_results_wrong; /* added to the count of results that a program says it has */
    /* ---- failures ---- */
    uint64_t fail_at;    /* the n-th call (of those that can fail) from reset on; 0: none */
    int fail_call;       /* or: every call of this kind; -1: none */
    int fail_code;       /* enum pjrt_code of those */
    uint64_t lose_after; /* runs until the device is lost; 0: never. From then on every call
                            fails with UNAVAILABLE */
    /* ---- what it saw ---- */
    uint64_t n_calls, calls[FAKE_N_CALLS];
    uint64_t executions, calls_when_lost;
    uint64_t live_errors, live_events, live_clients, live_buffers, live_executables, live_loaded,
        live_serialized;
    int client_devices;         /* of the client made last */
    char threads[16];           /* PJRT_NPROC when it was made */
    char log_level[16];         /* TF_CPP_MIN_LOG_LEVEL then */
    unsigned char options[512]; /* of the program compiled last */
    size_t options_size;
    bool lost;
    char order[4096]; /* names of the calls, with a space before each; destroying in lower case */
    uint64_t n_bad; /* misuse: a wrong size, a handle that is none, something destroyed twice ... */
    char bad[256];  /* the first */
};

typedef struct fake_plugin *fake_plugin_control_fn(void);
typedef void fake_plugin_reset_fn(void);
#define FAKE_PLUGIN_CONTROL "fake_plugin_control"
#define FAKE_PLUGIN_RESET   "fake_plugin_reset"

/* The control of the plugin at MXC_FAKE_PLUGIN, reset. Fails the test when it cannot be loaded. */
struct fake_plugin *mxc_fake_plugin_open(void);
/* Everything destroyed once and nothing misused: fails the test otherwise. */
void mxc_fake_plugin_check(const struct fake_plugin *fake);

#endif
