#!/bin/bash
# Goldens and speeds of the OpenXLA backend on the device that a plugin drives: one run, one page.
#
#     bench/xla-device.sh PLUGIN.so [MODEL...]
#
# Needs a build with tests (build/gcc-release of ./dev check, or the folder that BUILD names). MODEL:
# what `mlxcel bench` takes; default: the small model that comes along. Other variables: PRECISION
# (f32; also run: bf16), PROMPT and GEN (512, 128 tokens). Ends with 1 when the plugin is refused (a
# CUDA plugin where there is no GPU, say) or a golden does not hold.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
plugin=$(realpath -- "$1") || exit 2
shift
[ $# -gt 0 ] || set -- models/shapes-vl
build=${BUILD:-build/gcc-release} status=0
mlxcel=$build/mlxcel
[ -x "$mlxcel" ] || { echo "there is no $mlxcel: ./dev check builds it, or set BUILD" >&2; exit 2; }
export MLXCEL_XLA_PLUGIN=$plugin MLXCEL_NO_PROGRESS=1
export MLXCEL_XLA_PRECISION=${PRECISION:-f32}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

echo "== the device"
"$mlxcel" xla devices || { echo "this plugin cannot be used on this machine" >&2; exit 1; }

echo "== goldens"
for test in golden vision; do # texts, and pictures with what they say; all of them, not a sample
    [ -x "$build/tests/xla_test_$test" ] || { echo "there is no $build/tests/xla_test_$test" >&2; exit 2; }
    echo "-- $test"
    MXC_XLA_ALL=1 "$build/tests/xla_test_$test" >"$log" 2>&1 || status=1
    grep -v '^\[ *\(RUN\|OK\)' "$log"
done

echo "== a picture"
"$mlxcel" generate models/shapes-vl --backend xla --xla-vision-backend device --temp 0 -n 32 \
    --image models/shapes-vl/examples/05-four.webp -p "Describe the image." || status=1

for model in "$@"; do
    echo "== $model: the device, in $MLXCEL_XLA_PRECISION and bf16, then the processor"
    for precision in "$MLXCEL_XLA_PRECISION" bf16; do
        "$mlxcel" bench "$model" --backend xla --xla-precision "$precision" -p "${PROMPT:-512}" \
            -n "${GEN:-128}" -np 1,4,16 -r 3 || status=1
    done
    "$mlxcel" bench "$model" --backend cpu -p "${PROMPT:-512}" -n "${GEN:-128}" -np 1,4 -r 3 || status=1
done
exit $status
