/* Watch: the one thread that looks at connections from outside. libmicrohttpd tells nobody that the
 * client of a suspended connection went away, and its time-outs start again with every byte; so
 * this thread waits for hang-ups on every descriptor and enforces absolute deadlines, which end a
 * connection by shutdown(2). libmicrohttpd then finds it closed and cleans up.
 * Thread rules: any thread. notify runs on the watcher's thread with the watch locked: it must not
 * call add or remove; set, of its own entry, is fine. After remove returns it is never called. */
#ifndef MXC_SERVER_WATCH_H
#define MXC_SERVER_WATCH_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>

enum mxc_watch_event {
    MXC_WATCH_HUNG_UP, /* the client closed its side, or the connection broke; once */
    MXC_WATCH_LATE,    /* the deadline passed; the connection was shut down */
    MXC_WATCH_ALARM    /* the alarm passed; it is off now */
};

struct mxc_watched {
    int fd;
    _Atomic uint64_t deadline_ns, alarm_ns; /* on mxc_clock_ns; 0: none */
    void (*notify)(struct mxc_watched *entry, enum mxc_watch_event event);
    struct mxc_watched *next, *previous; /* private */
    uint64_t number;
    bool hung_up;
};

struct mxc_watch;
enum mxc_code mxc_watch_new(struct mxc_watch **watch, struct mxc_err *err) MXC_MUST;
/* Every entry must have been removed. */
void mxc_watch_free(struct mxc_watch *watch);
/* fd, notify and the times are set. MXC_E_IO: the system has no room. */
enum mxc_code mxc_watch_add(struct mxc_watch *watch, struct mxc_watched *entry) MXC_MUST;
/* The descriptor must still be open. */
void mxc_watch_remove(struct mxc_watch *watch, struct mxc_watched *entry);
/* Reads on from fd (taken over) and throws away what comes, until the other side closes or two
 * seconds have passed: a client that still sends gets to read the answer. */
void mxc_watch_linger(struct mxc_watch *watch, int fd);
/* For what notify and others share. */
void mxc_watch_lock(struct mxc_watch *watch);
void mxc_watch_unlock(struct mxc_watch *watch);
/* Calls each for every entry, locked. */
void mxc_watch_each(struct mxc_watch *watch, void (*each)(struct mxc_watched *entry, void *user),
                    void *user);

#endif
