#!/usr/bin/env bash
# The checks of api_anthropic.py against the real program. Skipped without python3.
command -v python3 > /dev/null || exit 77
exec python3 -B "$(dirname "$0")/api_anthropic.py"
