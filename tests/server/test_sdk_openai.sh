#!/usr/bin/env bash
# The checks of sdk_openai.py, by OpenAI's own client. Skipped where ./dev setup did not install it.
python=${MXC_CLIENTS:-$MXC_SOURCE/build/clients}/bin/python3
[ -x "$python" ] || { echo "skipped: no clients; ./dev setup installs them"; exit 77; }
exec "$python" -B "$(dirname "$0")/sdk_openai.py" "$@"
