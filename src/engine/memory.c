/* What memory this process may still take, as Linux tells it: /proc/meminfo, and the limits of the
 * control group (version 2) that it runs in.
 * Numbers that cannot be read count as not known. */
#define _GNU_SOURCE
#include "engine/load.h"

#include "base/str.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the start of a small system file. false: not there. */
static bool slurp(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, size - 1);
    (void)close(fd);
    if (n <= 0)
        return false;
    text[n] = 0;
    return true;
}

/* A file that holds one number; "max" and everything else is no number. */
static bool read_number(const char *path, uint64_t *out) {
    char text[64];
    int64_t value;
    if (!slurp(path, text, sizeof text))
        return false;
    text[strcspn(text, "\n")] = 0;
    if (!mxc_parse_i64(text, &value) || value < 0)
        return false;
    *out = (uint64_t)value;
    return true;
}

/* The number after a label in a text of "label number" lines; 0 when it is not there. */
static uint64_t labelled(const char *text, const char *label) {
    const char *line = strstr(text, label);
    return line ? strtoull(line + strlen(label), NULL, 10) : 0;
}

uint64_t mxc_memory_available(void) {
    char text[8192];
    uint64_t available = 0, limit, used;
    if (slurp("/proc/meminfo", text, sizeof text))
        available = labelled(text, "MemAvailable:") * 1024;
    if (read_number("/sys/fs/cgroup/memory.max", &limit) &&
        read_number("/sys/fs/cgroup/memory.current", &used)) {
        uint64_t rest = limit > used ? limit - used : 0;
        /* cached file pages are counted as used, but give way */
        if (slurp("/sys/fs/cgroup/memory.stat", text, sizeof text))
            rest += labelled(text, "\nactive_file ") + labelled(text, "\ninactive_file ");
        if (!available || rest < available)
            available = rest;
    }
    return available;
}
