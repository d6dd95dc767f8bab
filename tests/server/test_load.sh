#!/usr/bin/env bash
# The checks of load.py against the real program: a minute of load. Skipped without python3.
command -v python3 > /dev/null || exit 77
exec python3 -B "$(dirname "$0")/load.py"
