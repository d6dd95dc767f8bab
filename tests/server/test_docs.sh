#!/usr/bin/env bash
# The tables of docs/server.md are those of the program. Skipped without python3.
command -v python3 > /dev/null || exit 77
exec python3 -B "$MXC_SOURCE/tools/server_docs.py" "$MXC_PROGRAM" --check
