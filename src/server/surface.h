/* Surface: surface.def as JSON, for the documentation's tables and the tests. */
#ifndef MXC_SERVER_SURFACE_H
#define MXC_SERVER_SURFACE_H

#include <jansson.h>

/* {"flags": [...], "refused_flags": [...], "routes": [...], "fields": [...]}; NULL: out of memory.
 * A field's state: "honoured", "label" (asks for nothing that an answer shows), "only" (this value
 * only, else refused). */
json_t *mxc_surface_json(void);

#endif
