#!/bin/bash
# shapes-vl, the model that comes with the program, answers its 28 example questions about pictures as
# the reference did (greedy), with as many prompt tokens; its name is enough to run it.
set -u
exec python3 "$MXC_SOURCE/tests/cli/shapes.py" "$MXC_PROGRAM" "$MXC_SOURCE/models/shapes-vl"
