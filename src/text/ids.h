/* Growing list of token ids. Zero it to begin with. */
#ifndef MXC_TEXT_IDS_H
#define MXC_TEXT_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mxc_ids {
    uint32_t *items;
    size_t count, capacity;
};

bool mxc_ids_push(struct mxc_ids *ids, uint32_t id); /* false: out of memory */
void mxc_ids_fini(struct mxc_ids *ids);

#endif
