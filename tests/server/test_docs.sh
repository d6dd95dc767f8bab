#!/usr/bin/env bash
# The tables of docs/server.md are those of the program, and its examples do what they say. Skipped
# without either of python3 and curl.
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
command -v curl > /dev/null || { echo "skipped: no curl"; exit 77; }
python3 -B "$MXC_SOURCE/tools/server_docs.py" "$MXC_PROGRAM" --check || exit 1
exec python3 -B "$(dirname "$0")/docs.py"
