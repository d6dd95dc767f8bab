#!/usr/bin/env bash
# The checks of xla.py against the real program, in whichever of the three builds MXC_XLA names.
# Skipped without python3.
command -v python3 > /dev/null || exit 77
exec python3 -B "$(dirname "$0")/xla.py"
