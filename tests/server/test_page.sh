#!/usr/bin/env bash
# The chat page in headless Chromium: tests/server/page/checks.py. Skipped without either of python3
# and chromium.
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
command -v chromium > /dev/null || { echo "skipped: no chromium"; exit 77; }
exec python3 -B "$(dirname "$0")/page/checks.py" "$@"
