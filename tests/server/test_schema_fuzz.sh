#!/usr/bin/env bash
# schema_fuzz.py: schemathesis by the server's own description. Skipped where ./dev setup did not
# install the clients.
python=${MXC_CLIENTS:-$MXC_SOURCE/build/clients}/bin/python3
[ -x "$python" ] || { echo "skipped: no clients; ./dev setup installs them"; exit 77; }
exec "$python" -B "$(dirname "$0")/schema_fuzz.py" "$@"
