/* A Python package index, without Python: which one is configured, and where it has a file. The
 * configuration is pip's (its variables and files); the project names no index of its own. */
#ifndef MXC_STORE_PIP_INDEX_H
#define MXC_STORE_PIP_INDEX_H

#include "base/err.h"

#include <stddef.h>

/* The index's address, owned by the caller, from the first of: given (when not NULL or empty),
 * PIP_INDEX_URL, index-url in pip's files (PIP_CONFIG_FILE, the virtual environment's, the user's,
 * the system's; in each [install], [download], then [global]). MXC_E_NOT_FOUND: none is configured;
 * the message says what to set. */
enum mxc_code mxc_pip_index_find(const char *given, char **url, struct mxc_err *err) MXC_MUST;

/* Finds a file in the text of a project's page (PEP 503: HTML; PEP 691: JSON), which was got from
 * page_url. url: its address, made absolute and without fragment, owned by the caller. sha256: 64
 * lower-case digits, or "" where the page says none. MXC_E_NOT_FOUND: the page lists no such file;
 * MXC_E_FORMAT: it is no such page, or an address is none. */
enum mxc_code mxc_pip_index_file(const char *text, size_t length, const char *page_url,
                                 const char *file, char **url, char sha256[65],
                                 struct mxc_err *err) MXC_MUST;

#endif
