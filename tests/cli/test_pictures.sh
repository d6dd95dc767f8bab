#!/usr/bin/env bash
# Pictures on the command line (pictures.py). Skipped without python3.
command -v python3 >/dev/null || exit 77
exec python3 -B "$MXC_SOURCE/tests/cli/pictures.py" "$MXC_PROGRAM" "$MXC_SOURCE/models" \
    "$MXC_TEST_DATA/golden"
