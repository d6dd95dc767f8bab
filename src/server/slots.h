/* Slots: llama-server's /slots/ID?action=save, restore and erase. A slot here is a place among the
 * sequences in flight; what it "holds" is the KV that the last sequence in it left in the prefix
 * cache. Saving writes that to a file of the operator's folder, record by record (engine/shelf.h);
 * restoring puts such a file's blocks into the cache, where the next request with that prompt finds
 * them; erasing forgets them. Files of another model, program or setting are refused, damaged ones
 * too. The bytes of all files in the folder stay within a limit: a save that would pass it is
 * refused. Thread rules: any thread. */
#ifndef MXC_SERVER_SLOTS_H
#define MXC_SERVER_SLOTS_H

#include "gen/host.h"
#include "server/exchange.h"

struct mxc_slots;
/* folder NULL: no files. It is made when it is not there. */
enum mxc_code mxc_slots_new(struct mxc_host *host, const char *folder, uint64_t max_bytes,
                            struct mxc_slots **slots, struct mxc_err *err) MXC_MUST;
void mxc_slots_free(struct mxc_slots *slots); /* NULL is fine */
/* A sequence that ran in the slot has ended. */
void mxc_slots_note(struct mxc_slots *slots, int model, int slot,
                    const struct mxc_request_stats *stats);

#endif
