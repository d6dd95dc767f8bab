#!/usr/bin/env bash
# What `inspect` says a model takes against what `generate` took when its context was full: within
# 5 % or 16 MiB; on a small checkpoint always, on the demo's model when the store holds it. And what
# does not fit is said by inspect and refused by generate, with both numbers.
set -u
mlxcel=$MXC_PROGRAM data=$(realpath "$MXC_TEST_DATA")
store=${MLXCEL_MODELS_DIR:-${MLXCEL_CACHE_DIR:-$HOME/.cache/mlxcel}/models}
demo=$store/HuggingFaceTB/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MLXCEL_NO_PROGRESS=1
passed=0 failed=0

result() { # NAME STATUS [WHAT]
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1${3:+: $3}"
    fi
}

number() { # KEY < JSON: its first number
    grep -oE "\"$1\": ?[0-9]+" | head -n 1 | grep -oE '[0-9]+$'
}

# Text of about that many tokens, all in one line.
words() {
    cat "$MXC_SOURCE"/docs/*.md "$MXC_SOURCE"/README.md "$MXC_SOURCE"/src/*/*.c |
        tr -cd '\12\40-\176' | tr -s '\n ' ' ' | head -c "$1"
}

tokens() { # MODEL FILE
    "$mlxcel" tokenize "$1" --add-special "$2" | tr -cd ',' | wc -c
}

# measure NAME MODEL CONTEXT
measure() {
    local model=$2 context=$3 n total peak difference most
    words $((context * 3)) >"$work/text"
    n=$(tokens "$model" "$work/text")
    while [ "$n" -gt $((context - 8)) ]; do
        words $(($(wc -c <"$work/text") * (context - 8) / n - 4)) >"$work/text.1"
        mv "$work/text.1" "$work/text"
        n=$(tokens "$model" "$work/text")
    done
    total=$("$mlxcel" inspect "$model" -c "$context" --json | number total_bytes)
    peak=$("$mlxcel" generate "$model" -c "$context" -f "$work/text" -n 6 --temp 1 --seed 1 \
        --no-chat-template --ignore-eos --json 2>"$work/error" | number peak_memory_bytes)
    if [ -z "$total" ] || [ -z "$peak" ] || [ "$n" -lt $((context / 2)) ]; then
        result "$1" 1 "estimate ${total:-none}, peak ${peak:-none}, $n tokens: $(cat "$work/error")"
        return
    fi
    difference=$((peak > total ? peak - total : total - peak))
    most=$((total / 20 > 16 << 20 ? total / 20 : 16 << 20))
    echo "$1: context $context, $n tokens: estimate $((total >> 10)) KiB, peak $((peak >> 10)) KiB"
    [ $difference -le $most ]
    result "$1" $? "$difference bytes apart, more than $most"
}

if grep -qaE '__(asan|tsan)_init' "$mlxcel"; then
    echo "memory is not measured with sanitizers"
else
    measure "small checkpoint" "$data/golden/llama" 1024
    [ ! -f "$demo" ] || measure "SmolLM2" "$demo" 2048
fi

# A context that no machine has memory for: 64 Mi tokens of 1.5 kB.
mkdir "$work/long"
ln -s "$data"/golden/qwen3/*.safetensors "$data"/golden/qwen3/tokenizer* "$work/long"
sed -E 's/("max_position_embeddings": *)[0-9]+/\167108864/' "$data/golden/qwen3/config.json" \
    >"$work/long/config.json"
"$mlxcel" inspect "$work/long" -c 67108864 --json >"$work/inspect"
result "inspect of what does not fit" $?
if grep -qE '"fits": ?false' "$work/inspect"; then
    "$mlxcel" generate "$work/long" -c 67108864 -p x -n 1 --no-chat-template >"$work/out" 2>&1
    [ $? -eq 1 ]
    result "refusal: status" $?
    grep -qE ': [0-9]+ MiB are needed .*KV of 67108864 tokens [0-9]+.*, [0-9]+ MiB are available' \
        "$work/out"
    result "refusal: both numbers" $? "$(cat "$work/out")"
    [ "$(grep -c . "$work/out")" = 1 ]
    result "refusal: one line" $?
    "$mlxcel" generate "$work/long" -p x -n 1 --temp 0 --no-chat-template >"$work/out" 2>&1
    result "a context that nobody asked for is cut to what fits" $? "$(cat "$work/out")"
else
    echo "this machine has memory for anything; refusal is not tested"
fi
"$mlxcel" inspect "$work/long" -c 64 --json | grep -qE '"fits": ?true'
result "a small context fits" $?

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
