#!/usr/bin/env bash
# The calls of curl_llama.py by curl itself. Skipped without either of python3 and curl.
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
command -v curl > /dev/null || { echo "skipped: no curl"; exit 77; }
exec python3 -B "$(dirname "$0")/curl_llama.py" "$@"
