#!/usr/bin/env bash
# The OpenXLA backend from outside, in each of the three builds (MXC_XLA is none, seam or device):
# what --backend xla, its options and the server say where nothing can run: no backend, no device
# runtime, no plugin. Runs on a device are in tests/xla/test_end_to_end.sh.
set -u
mlxcel=$MXC_PROGRAM golden=$MXC_TEST_DATA/golden build=$MXC_XLA
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MLXCEL_NO_PROGRESS=1 MLXCEL_CACHE_DIR=$work/cache MLXCEL_STATE_DIR=$work/state
unset MLXCEL_BACKEND MLXCEL_XLA_PLUGIN MLXCEL_XLA_PRECISION MLXCEL_XLA_CONTEXT_CAPACITY
unset MLXCEL_XLA_VISION_BACKEND
passed=0 failed=0
rebuild="rebuild with -DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON"
not_wired="XLA: this build has no device runtime: rebuild with -DMLXCEL_XLA_DEVICE_RUNTIME=ON"
image_load="OpenXLA image preprocessor load failed:"
lacks="the image path needs the device runtime (feature xla-device), which this build lacks: $rebuild"

result() { # NAME STATUS [WHAT]
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1${3:+: $3}"
    fi
}

# says NAME STATUS TEXT COMMAND...: that exit status, and that text (of errors or answers).
says() {
    local name=$1 status=$2 text=$3 got
    shift 3
    "$@" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    [ "$got" = "$status" ]
    result "$name: exit status" $? "$got, not $status: $(head -c 300 "$work/err")"
    [ -z "$text" ] || cat "$work/out" "$work/err" | grep -F -- "$text" >"$work/found"
    result "$name: text" $? "$(head -c 400 "$work/err")"
}

answer() { # MODEL [OPTIONS...]
    "$mlxcel" generate "$golden/$1" -p x -n 2 --temp 0 "${@:2}"
}

# ---- the command line

if [ "$build" = none ]; then
    says "no backend, flag" 2 "backend 'xla' is not in this build: $rebuild" \
        answer llama --backend xla
    says "no backend, variable" 2 "backend 'xla' is not in this build: $rebuild" \
        env MLXCEL_BACKEND=xla "$mlxcel" generate "$golden/llama" -p x -n 2
    says "no backend, inspect" 0 "cannot be run: backend 'xla' is not in this build: $rebuild" \
        env MLXCEL_BACKEND=xla "$mlxcel" inspect "$golden/llama"
else
    says "a policy that is none" 2 \
        "$image_load MLXCEL_XLA_VISION_BACKEND: \"gpu\" must be auto, host, device or iree" \
        answer llama --backend xla --xla-vision-backend gpu
    says "a policy that is none, variable" 2 "must be auto, host, device or iree" \
        env MLXCEL_XLA_VISION_BACKEND=gpu "$mlxcel" generate "$golden/qwen2_vl" --backend xla -p x
    says "the flag wins over the variable" 2 "\"tpu\" must be auto, host, device or iree" \
        env MLXCEL_XLA_VISION_BACKEND=host "$mlxcel" generate "$golden/llama" --backend xla -p x \
        --xla-vision-backend tpu
    says "a capacity of 0" 2 \
        "MLXCEL_XLA_CONTEXT_CAPACITY: \"0\" is not a whole number from 1 to 2147483647" \
        answer llama --backend xla --xla-context-capacity 0
    says "a capacity beyond 2^31-1" 2 "MLXCEL_XLA_CONTEXT_CAPACITY: \"2147483648\" is not" \
        env MLXCEL_XLA_CONTEXT_CAPACITY=2147483648 "$mlxcel" generate "$golden/llama" -p x \
        --backend xla
    says "no device" 2 "MLXCEL_TP_SIZE: \"0\" is not a whole number from 1 to 1024" \
        answer llama --backend xla --tp-size 0
    says "a precision that is none" 2 "MLXCEL_XLA_PRECISION: \"fp8\" must be f32, f16, bf16 or auto" \
        answer llama --backend xla --xla-precision fp8
fi
says "the cpu backend does not split" 2 "MLXCEL_TP_SIZE: 2: the cpu backend runs a model on one" \
    answer llama --backend cpu --tp-size 2
if [ "$build" = seam ]; then
    says "text, no runtime" 1 "$not_wired" answer llama --backend xla
    says "qwen2_vl, no runtime" 2 "$image_load qwen2_vl: $lacks" answer qwen2_vl --backend xla
    says "qwen2_vl under host, no runtime" 2 "the session itself could not run" \
        answer qwen2_vl --backend xla --xla-vision-backend host
    says "llava under iree, no runtime" 2 "$image_load MLXCEL_XLA_VISION_BACKEND=iree: " \
        answer llava_clip_llama --backend xla --xla-vision-backend iree
    says "llava, no runtime" 1 "$not_wired" answer llava_clip_llama --backend xla
    says "inspection goes without the image loader" 0 "" \
        "$mlxcel" inspect "$golden/qwen2_vl" --backend xla
fi
if [ "$build" = device ]; then
    says "no plugin" 1 "plugin" answer llama --backend xla
    says "a plugin that is not there" 1 "/nowhere/plugin.so" \
        answer llama --backend xla --xla-plugin /nowhere/plugin.so
    says "a plugin that is none" 1 "$golden/llama/config.json" \
        answer llama --backend xla --xla-plugin "$golden/llama/config.json"
fi
# ---- emit, devices, install

emit() {
    "$mlxcel" xla emit "$golden/llama" "$@"
}
install() { # KIND [VARIABLE=VALUE...]
    env PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL= "${@:2}" "$mlxcel" xla install "$1"
}
says "xla without a word" 2 "say install, devices or emit" "$mlxcel" xla
says "xla with another word" 2 "\"plugins\": must be install, devices or emit" "$mlxcel" xla plugins
says "xla install without a kind" 2 "cpu, cuda12, cuda13 or rocm" "$mlxcel" xla install
if [ "$build" = none ]; then
    says "no backend, emit" 2 "backend 'xla' is not in this build: $rebuild" emit
    says "no backend, devices" 2 "backend 'xla' is not in this build: $rebuild" "$mlxcel" xla devices
else
    says "the text of a decode step" 0 "func.func public @main(" emit --decode 4
    says "the text of a prompt" 0 "func.func public @main(" emit --prefill 16 --unrolled
    says "what sees is emitted without the image loader" 0 "func.func public @main(" \
        env MLXCEL_XLA_VISION_BACKEND=gpu "$mlxcel" xla emit "$golden/qwen2_vl"
fi
if [ "$build" = seam ]; then
    says "no runtime, devices" 1 "(feature xla-device): $rebuild" "$mlxcel" xla devices
fi
if [ "$build" = device ]; then
    says "no plugin, devices" 1 "XLA: no plugin: set MLXCEL_XLA_PLUGIN or --xla-plugin" \
        "$mlxcel" xla devices
    says "devices of a plugin" 0 "device 0  fake device, memory 1.1 GB" \
        "$mlxcel" xla devices --xla-plugin "$MXC_FAKE_PLUGIN"
    says "devices of a plugin, JSON" 0 '"pjrt_api":[0,115]' \
        env MLXCEL_XLA_PLUGIN="$MXC_FAKE_PLUGIN" "$mlxcel" xla devices --json
    says "an answer of a plugin that computes nothing" 0 "" \
        answer llama --backend xla --xla-plugin "$MXC_FAKE_PLUGIN"
    says "a device that is lost" 1 "the device was lost: UNAVAILABLE: the fake device was lost" \
        env MXC_FAKE_LOSE_AFTER=40 "$mlxcel" generate "$golden/llama" -p x -n 200 --temp 0 \
        --ignore-eos --backend xla --xla-plugin "$MXC_FAKE_PLUGIN"
    says "a kind that is none" 2 "\"tpu\" is not a kind of plugin: cpu, cuda12, cuda13, rocm" install tpu
    for kind in cpu cuda12 cuda13 rocm; do
        says "no index, $kind" 1 "no Python package index is configured: set PIP_INDEX_URL" \
            install $kind
    done
else
    says "no runtime, install" 1 "this build lacks the device runtime (feature xla-device): $rebuild" \
        install cpu
fi

says "the CPU takes no notice of the rest" 0 "" \
    env MLXCEL_XLA_VISION_BACKEND=gpu MLXCEL_XLA_CONTEXT_CAPACITY=x "$mlxcel" generate \
    "$golden/llama" -p x -n 2

# ---- the server: a start-up error, before it is ready

says "the server ends" 1 \
    "$(case $build in
    none) echo "$rebuild" ;;
    seam) echo "$image_load qwen2_vl: $lacks" ;;
    device) echo plugin ;;
    esac)" \
    timeout 60 "$mlxcel" serve "$golden/qwen2_vl" --backend xla --port 0
grep -q ": ready" "$work/out"
result "the server was not ready" $((!$?))

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
