/* JSON by bytes: follows one value, says where it ends or stops being JSON, and copies it. The one
 * liberty: raw control characters inside strings, which models write, are escaped in the copy.
 * One value, one thread. */
#ifndef MXC_GEN_TOOLS_JSON_SCAN_H
#define MXC_GEN_TOOLS_JSON_SCAN_H

#include "base/buf.h"

enum { MXC_JSON_SCAN_DEPTH = 256 };

enum mxc_scan {
    MXC_SCAN_GO,
    MXC_SCAN_END,    /* the byte is the value's last */
    MXC_SCAN_BEFORE, /* the value (a number) ended before this byte, which is not consumed */
    MXC_SCAN_BAD     /* the byte cannot stand here; not consumed */
};

struct mxc_json_scan {
    unsigned char state, number, hex;
    int depth;
    const char *word; /* what is left of true, false, null */
    unsigned char is_object[MXC_JSON_SCAN_DEPTH / 8];
};

void mxc_json_scan_init(struct mxc_json_scan *scan);
/* White space before the value is accepted and copied too. copy may be NULL. */
enum mxc_scan mxc_json_scan_push(struct mxc_json_scan *scan, char byte, struct mxc_buf *copy);

#endif
