#!/usr/bin/env bash
# The checks of sdk_anthropic.py, by the clients themselves. Skipped where ./dev setup did not install them.
python=${MXC_CLIENTS:-$MXC_SOURCE/build/clients}/bin/python3
[ -x "$python" ] || { echo "skipped: no clients; ./dev setup installs them"; exit 77; }
exec "$python" -B "$(dirname "$0")/sdk_anthropic.py" "$@"
