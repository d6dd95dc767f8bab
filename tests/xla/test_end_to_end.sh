#!/usr/bin/env bash
# The program and the server on the OpenXLA backend, on a real CPU plugin: MLXCEL_XLA_PLUGIN, else the
# one that "./dev setup" got. SmolLM2 where the store has it (./dev demo), and shapes-vl with pictures.
# Skipped without a plugin, without the device runtime, or without python3.
plugin=${MLXCEL_XLA_PLUGIN:-$MXC_SOURCE/build/xla/cpu.so}
if [ "$MXC_XLA" != device ]; then
    echo "skipped: this build has no device runtime (MLXCEL_XLA_DEVICE_RUNTIME)"
    exit 77
fi
if [ -n "${MXC_WATCHED_THREADS:-}" ]; then
    echo "skipped: ThreadSanitizer takes what a plugin's threads do for races"
    exit 77
fi
if [ ! -r "$plugin" ]; then
    echo "skipped: no PJRT plugin (./dev setup gets one; MLXCEL_XLA_PLUGIN)"
    exit 77
fi
command -v python3 > /dev/null || exit 77
MLXCEL_XLA_PLUGIN=$plugin exec python3 -B "$(dirname "$0")/end_to_end.py"
