#!/usr/bin/env bash
# Operations on weights from the command line: the example of docs/surgery.md is valid and does what
# it says to the golden llama; what an operation touches; answers with and without; errors.
set -u
mlxcel=$MXC_PROGRAM llama=$MXC_TEST_DATA/golden/llama
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MLXCEL_MODELS_DIR=$work/models MLXCEL_CACHE_DIR=$work/cache MLXCEL_NO_PROGRESS=1
unset MLXCEL_SURGERY MLXCEL_BACKEND
passed=0 failed=0

result() { # NAME STATUS
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1"
        head -c 600 "$work/out"
    fi
}

# says NAME STATUS TEXT COMMAND...: that exit status, and that text.
says() {
    local name=$1 status=$2 text=$3 got
    shift 3
    "$@" >"$work/out" 2>&1 </dev/null
    got=$?
    [ "$got" = "$status" ]
    result "$name: exit status $got" $?
    grep -qF -- "$text" "$work/out"
    result "$name: no \"$text\"" $?
}

# ---- the example of the documentation

sed -n '/^```yaml$/,/^```$/p' "$MXC_SOURCE/docs/surgery.md" | sed '/^```/d' >"$work/example.yaml"
says "without its sources" 1 "(add): source: there is no file $work/donor.safetensors" \
    "$mlxcel" surgery validate "$work/example.yaml"
cp "$llama/model.safetensors" "$work/donor.safetensors"
says "the example" 0 "example.yaml: 5 operations, valid" \
    "$mlxcel" surgery validate "$work/example.yaml"
says "the example on a model" 0 "example.yaml: 5 operations, valid" \
    "$mlxcel" surgery validate "$work/example.yaml" "$llama"
cat >"$work/want" <<'END'
#0 scale        model.layers.*.self_attn.o_proj.weight (factor 1.2): 3 tensors
#1 add          model.layers.*.mlp.down_proj.weight (alpha 0.5): 3 tensors
#2 prune        model.layers.2.self_attn.* (2 of attention_head): 2 tensors
#3 replace      model.layers.*.mlp.gate_proj.weight (model.layers.*.mlp.up_proj.weight): 3 tensors
#4 interpolate  model.embed_tokens.weight (slerp, ratio 0.3): 1 tensors
END
head -n 5 "$work/out" | diff "$work/want" - >"$work/difference"
result "what it touches: $(cat "$work/difference")" $?
says "inspect" 0 "#2 prune        model.layers.2.self_attn.* (2 of attention_head): 2 tensors" \
    "$mlxcel" inspect "$llama" --surgery "$work/example.yaml"
says "inspect --json" 0 '"op":"interpolate"' \
    "$mlxcel" inspect "$llama" --surgery "$work/example.yaml" --json

# ---- what is left alone is told once, wherever the document is read

cat >"$work/prune.yaml" <<'END'
version: 1
operations:
  - {op: prune, granularity: attention_head, pattern: "*.self_attn.*", head_ids: [1]}
END
left="6 left alone, keys and values that other heads share (model.layers.0.self_attn.k_proj.weight, ...)"
once() { # NAME: the last output says so in one line
    [ "$(grep -cF "left alone" "$work/out")" = 1 ]
    result "$1: told $(grep -cF "left alone" "$work/out") times" $?
}
says "validate a prune" 0 "tensors; $left" "$mlxcel" surgery validate "$work/prune.yaml" "$llama"
says "inspect a prune" 0 "tensors; $left" "$mlxcel" inspect "$llama" --surgery "$work/prune.yaml"
once inspect
says "inspect --json of a prune" 0 "\"left_alone\":\"$left\"" \
    "$mlxcel" inspect "$llama" --json --surgery "$work/prune.yaml"
once "inspect --json"
says "generate with a prune" 0 "warning: surgery operation #0 (prune): $left" \
    "$mlxcel" generate "$llama" -p Hello -n 1 --surgery "$work/prune.yaml"
once generate

# ---- the list of ops is the same; flag and variable are heeded

"$mlxcel" inspect "$llama" --graph >"$work/graph"
says "--graph" 0 "" "$mlxcel" inspect "$llama" --graph --surgery "$work/example.yaml"
cmp -s "$work/out" "$work/graph"
result "--graph with operations" $?

# ---- the text of a program is that of the weights as they become

if [ "$MXC_XLA" != none ]; then
    cp "$MXC_TEST_DATA/golden/llama_bf16/model.safetensors" "$work/half.safetensors"
    cat >"$work/half.yaml" <<'END'
version: 1
operations:
  - op: replace
    pattern: "model.layers.*.mlp.gate_proj.weight"
    source: half.safetensors
    source_key: "model.layers.*.mlp.gate_proj.weight"
END
    "$mlxcel" xla emit "$llama" >"$work/program"
    grep -q bf16 "$work/program"
    [ $? = 1 ]
    result "a program without bf16" $?
    says "xla emit --surgery" 0 bf16 "$mlxcel" xla emit "$llama" --surgery "$work/half.yaml"
    says "xla emit, variable" 0 bf16 \
        env MLXCEL_SURGERY="$work/half.yaml" "$mlxcel" xla emit "$llama"
    says "xla emit, the flag wins" 0 "" \
        env MLXCEL_SURGERY="$work/half.yaml" "$mlxcel" xla emit "$llama" --surgery ""
    cmp -s "$work/out" "$work/program"
    result "xla emit without operations" $?
fi

# ---- answers

answer() {
    "$mlxcel" generate "$llama" -p Hello -n 12 --temp 0 "$@" 2>&1
}
plain=$(answer)
printf 'version: 1\noperations: []\n' >"$work/empty.yaml"
[ "$(answer --surgery "$work/empty.yaml")" = "$plain" ]
result "an empty list changes nothing" $?
[ "$(answer --surgery "$work/example.yaml")" != "$plain" ]
result "the example changes the answer" $?
[ "$(MLXCEL_SURGERY=$work/example.yaml answer)" != "$plain" ]
result "so does the variable" $?
[ "$(MLXCEL_SURGERY=$work/example.yaml answer --surgery "")" = "$plain" ]
result "the flag wins over the variable" $?
says "bench" 0 "" "$mlxcel" bench "$llama" -p 8 -n 0 -r 1 --surgery "$work/example.yaml"

# ---- errors

printf 'version: 1\noperations:\n  - {op: scale, pattern: "z.*", factor: 2}\n' >"$work/none.yaml"
cause='none.yaml: surgery operation #0 (scale): no tensor matches the pattern "z.*"'
says "no match" 1 "$cause" answer --surgery "$work/none.yaml"
says "no match, inspect" 1 "$cause" "$mlxcel" inspect "$llama" --surgery "$work/none.yaml"
says "no match, --graph" 1 "$cause" "$mlxcel" inspect "$llama" --graph --surgery "$work/none.yaml"
says "no match, --graph, variable" 1 "$cause" \
    env MLXCEL_SURGERY="$work/none.yaml" "$mlxcel" inspect "$llama" --graph
says "--graph, the flag wins" 0 "" \
    env MLXCEL_SURGERY="$work/none.yaml" "$mlxcel" inspect "$llama" --graph --surgery ""
says "no match, validate" 1 "$cause" "$mlxcel" surgery validate "$work/none.yaml" "$llama"
says "no file" 1 "surgery: $work/gone.yaml" answer --surgery "$work/gone.yaml"
says "no word" 2 "say validate" "$mlxcel" surgery
says "another word" 2 '"operate": must be validate' "$mlxcel" surgery operate
says "validate nothing" 2 "FILE is missing" "$mlxcel" surgery validate
says "help" 0 "surgery validate FILE [MODEL]" "$mlxcel" surgery --help

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
