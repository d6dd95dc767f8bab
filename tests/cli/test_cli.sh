#!/usr/bin/env bash
# The command line, end to end, on the small checkpoints of tests/data/golden.
# MXC_PROGRAM is the binary, MXC_TEST_DATA tests/data.
set -u
mlxcel=$MXC_PROGRAM data=$MXC_TEST_DATA
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MLXCEL_MODELS_DIR=$work/models MLXCEL_CACHE_DIR=$work/cache MLXCEL_NO_PROGRESS=1
llama=$data/golden/llama
passed=0 failed=0

# check NAME STATUS [PATTERN]: runs "$@" after --, compares the exit status, greps stdout+stderr.
check() {
    local name=$1 want=$2 pattern=$3 got
    shift 4
    "$@" >"$work/out" 2>&1 </dev/null
    got=$?
    if [ "$got" != "$want" ]; then
        echo "FAILED: $name: exit status $got, expected $want"
        sed 's/^/    /' "$work/out" | head -n 5
        failed=$((failed + 1))
    elif [ -n "$pattern" ] && ! grep -qE -- "$pattern" "$work/out"; then
        echo "FAILED: $name: no match for: $pattern"
        sed 's/^/    /' "$work/out" | head -n 5
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
}

# same NAME A B
same() {
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
    else
        printf 'FAILED: %s\n    %s\n    %s\n' "$1" "$2" "$3"
        failed=$((failed + 1))
    fi
}

check "no arguments" 2 'Usage: mlxcel' -- "$mlxcel"
check "help" 0 'tokenize' -- "$mlxcel" --help
check "help COMMAND" 0 'Usage: mlxcel bench' -- "$mlxcel" help bench
check "help NONSENSE" 2 'unknown command' -- "$mlxcel" help nonsense
check "version" 0 '^mlxcel [0-9]+\.[0-9]+' -- "$mlxcel" --version
check "unknown command" 2 'did you mean generate' -- "$mlxcel" generat
for command in run generate inspect list rm arch download tokenize template bench trace; do
    check "$command --help" 0 "Usage: mlxcel $command" -- "$mlxcel" "$command" --help
done
check "unknown option" 2 'did you mean --max-tokens' -- "$mlxcel" generate "$llama" --max-token 3
check "option without value" 2 'needs a value' -- "$mlxcel" generate "$llama" -n
check "option out of range" 2 'is not in' -- "$mlxcel" generate "$llama" --top-p 2
check "no model" 2 'MODEL is missing' -- "$mlxcel" generate
check "model not found" 1 'nowhere' -- "$mlxcel" generate "$work/nowhere" -p x
check "not a model" 1 'config.json' -- "$mlxcel" generate "$work" -p x

check "generate" 0 '.' -- "$mlxcel" generate "$llama" -p Hello -n 4 --temp 0
check "generate json" 0 '"completion_tokens":4' -- \
    "$mlxcel" generate "$llama" -p Hello -n 4 --temp 0 --json
check "generate stats" 0 'tokens/s.*peak memory' -- \
    "$mlxcel" run "$llama" -p Hello -n 4 --temp 0 --stats
check "raw prompt" 0 '"prompt_tokens":[0-9]+' -- \
    "$mlxcel" generate "$llama" -p Hello -n 2 --no-chat-template --json
check "prompt too long" 1 'context' -- "$mlxcel" generate "$llama" -c 16 -n 4 --no-chat-template \
    -p "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
check "prompt from a pipe" 0 '"completion_tokens":2' -- \
    bash -c "'$mlxcel' generate '$llama' -f <(echo Hello) -n 2 --temp 0 --json"
check "pictures are refused" 1 'sees no pictures' -- "$mlxcel" run "$llama" -p x --image cat.jpg
check "bad precision" 2 'exact or fast' -- "$mlxcel" generate "$llama" -p x --precision half
check "bad backend" 1 'cpu' -- "$mlxcel" generate "$llama" -p x --backend tpu
check "bad logit bias" 2 'ID\+X' -- "$mlxcel" generate "$llama" -p x -l abc
first=$(echo Hello | "$mlxcel" run "$llama" -n 6 --temp 0 2>/dev/null)
second=$("$mlxcel" run "$llama" -n 6 --temp 0 -p Hello 2>/dev/null)
same "standard input is the prompt" "$first" "$second"
one=$("$mlxcel" generate "$llama" -p Hello -n 8 --seed 7 --temp 1 2>/dev/null)
two=$("$mlxcel" generate "$llama" -p Hello -n 8 --seed 7 --temp 1 -t 1 2>/dev/null)
same "a seed gives the same text with one thread" "$one" "$two"

printf 'a\0b' >"$work/nul"
check "NUL in a file" 1 'NUL' -- "$mlxcel" generate "$llama" -f "$work/nul" -n 2
check "NUL in standard input" 1 'standard input.*NUL' -- \
    bash -c "'$mlxcel' generate '$llama' -n 2 <'$work/nul'"
echo Hello >"$work/hello"
same "a file is the prompt" "$("$mlxcel" run "$llama" -n 6 --temp 0 -f "$work/hello")" "$first"
check "prompt and file" 2 'exclude' -- "$mlxcel" generate "$work/nowhere" -p x -f "$work/hello"
check "raw and system" 2 'needs a chat template' -- \
    "$mlxcel" run "$llama" --no-chat-template --system x
check "raw and template variables" 2 'needs a chat template' -- \
    "$mlxcel" run "$llama" --no-chat-template --chat-template-kwargs '{}' -p x
check "bad template variables" 2 'chat-template-kwargs.*line 1' -- \
    "$mlxcel" run "$llama" -p x --chat-template-kwargs '{bad'
check "template variables are an object" 2 'not a JSON object' -- \
    "$mlxcel" run "$llama" -p x --chat-template-kwargs '[1]'
check "system is UTF-8" 2 'UTF-8' -- "$mlxcel" run "$llama" -p x --system $'\xff'
mkdir "$work/plain"
cp "$llama"/*.json "$llama"/*.safetensors "$work/plain/"
check "no chat template" 1 'no-chat-template' -- "$mlxcel" run "$work/plain" -p x -n 1
check "none wanted" 0 '' -- "$mlxcel" run "$work/plain" -p x -n 1 --no-chat-template
check "empty variables" 0 '' -- env MLXCEL_CPU= MLXCEL_BACKEND= "$mlxcel" run "$llama" -p x -n 1
check "bad variable" 2 'MLXCEL_CPU' -- env MLXCEL_CPU=z80 "$mlxcel" run "$llama" -p x -n 1
check "context of one" 2 'context' -- "$mlxcel" run "$llama" -p x -c 1
check "context too large" 0 'warning.*context' -- "$mlxcel" run "$llama" -p x -n 1 -c 99999999
check "closed output" 1 'cannot write' -- bash -c "'$mlxcel' generate '$llama' -p x -n 3 >&-"
check "full output" 1 'cannot write' -- \
    bash -c "'$mlxcel' generate '$llama' -p x --ignore-eos >/dev/full"
check "closed input" 1 'standard input' -- bash -c "'$mlxcel' run '$llama' <&-"
# a closed stream's number must not go to a file: what is printed would end up in it
check "closed error" 0 '' -- bash -c \
    "'$mlxcel' trace '$llama' -c 99999999 -v --ids 1,2 --steps 1 -o '$work/c.safetensors' 2>&-"
same "closed error, file" "$(tail -c +9 "$work/c.safetensors" | head -c 12)" '{"input_ids"'
nul=$(printf '"\\u0000"\n' | "$mlxcel" tokenize "$llama" --jsonl | tr -d '[]')
check "NUL in an answer" 0 '"text":"(.u0000){3}"' -- \
    "$mlxcel" generate "$llama" -p x -n 3 --temp 0 --ignore-eos -l "$nul+1000" --json
mkdir "$work/odd"$'\xff' "$work/two"
cp "$data/golden/llama_gguf_q4_k/model.gguf" "$work/odd"$'\xff'/
cp "$data/golden/llama_gguf_q4_k/model.gguf" "$work/two/a.gguf"
cp "$data/golden/llama_gguf_q4_k/model.gguf" "$work/two/b.gguf"
check "inspect json of an odd path" 0 '"path":"[^"]*odd�/' -- "$mlxcel" inspect "$work/odd"$'\xff' --json
check "two GGUF files in a folder" 2 'a.gguf, b.gguf' -- "$mlxcel" generate "$work/two" -p x

check "inspect" 0 'fits' -- "$mlxcel" inspect "$llama"
check "inspect tensors" 0 'model.layers.0.self_attn.q_proj.weight' -- \
    "$mlxcel" inspect "$llama" --tensors
check "inspect json" 0 '"kv_bytes_total":[0-9]+' -- "$mlxcel" inspect "$llama" --json
check "inspect gguf" 0 'Q4_K' -- "$mlxcel" inspect "$data/golden/llama_gguf_q4_k/model.gguf"
check "arch" 0 'qwen3' -- "$mlxcel" arch
check "arch json" 0 '"model_types":\["llama"' -- "$mlxcel" arch --json
check "empty store" 0 'empty' -- "$mlxcel" list

mkdir -p "$work/models/me/tiny"
cp "$llama"/*.json "$llama"/*.safetensors "$llama"/*.jinja "$work/models/me/tiny/"
check "list" 0 'me/tiny +safetensors' -- "$mlxcel" list
check "list -q" 0 '^me/tiny$' -- "$mlxcel" list -q
check "list json" 0 '"name":"me/tiny"' -- "$mlxcel" list --json
check "owner/name" 0 '"completion_tokens":2' -- "$mlxcel" generate me/tiny -p x -n 2 --temp 0 --json
check "bare name" 0 '"completion_tokens":2' -- "$mlxcel" generate tiny -p x -n 2 --temp 0 --json
check "rm needs --yes" 2 'give --yes' -- "$mlxcel" rm me/tiny
check "rm outside" 2 'not a model name' -- "$mlxcel" rm --yes ../models
check "rm" 0 'removed me/tiny' -- "$mlxcel" rm --yes me/tiny
check "gone" 0 'empty' -- "$mlxcel" list

printf 'Hello world\r\nok' >"$work/lines"
check "tokenize" 0 '^\[[0-9,]+\]$' -- "$mlxcel" tokenize "$llama" "$work/lines"
same "one line per line" "$("$mlxcel" tokenize "$llama" "$work/lines" | wc -l)" 2
ids=$(printf '"Hello world"\n' | "$mlxcel" tokenize "$llama" --jsonl)
same "decode" "$(printf '%s\n' "$ids" | "$mlxcel" tokenize "$llama" --decode)" "Hello world"
same "decode jsonl" "$(printf '%s\n' "$ids" | "$mlxcel" tokenize "$llama" --jsonl)" '"Hello world"'
check "bad line" 1 'line 1' -- bash -c "echo nonsense | '$mlxcel' tokenize '$llama' --jsonl"
mkdir "$work/only"
cp "$llama/tokenizer.json" "$work/only/"
same "only tokenizer.json" \
    "$(printf '"Hello world"\n' | "$mlxcel" tokenize "$work/only" --jsonl)" "$ids"
check "tokenize gguf" 0 '^\[[0-9,]+\]$' -- \
    "$mlxcel" tokenize "$data/golden/llama_gguf_q4_k/model.gguf" "$work/lines"

printf '{%% for m in messages %%}<{{ m.role }}>{{ m.content | trim }}{%% endfor %%}' >"$work/t.jinja"
vars='{"messages":[{"role":"user","content":" hi "}]}'
same "template file" "$(echo "$vars" | "$mlxcel" template --template "$work/t.jinja")" '"<user>hi"'
same "template lines" "$(printf '%s\n%s\n' "$vars" "$vars" |
    "$mlxcel" template --template "$work/t.jinja" --jsonl | wc -l)" 2
check "template of a model" 0 '^"' -- bash -c "echo '$vars' | '$mlxcel' template '$llama'"
printf '{{ raise_exception("no") }}' >"$work/e.jinja"
check "template error" 1 '"error":.*no' -- bash -c "echo '$vars' | '$mlxcel' template --template '$work/e.jinja'"
printf "{{ strftime_now('%%Y-%%m-%%d %%H') }}" >"$work/c.jinja"
same "template clock" "$(echo '{}' | MLXCEL_TEMPLATE_NOW=2026-11-30T12:34:56 \
    "$mlxcel" template --template "$work/c.jinja")" '"2026-11-30 12"'

check "trace" 0 '' -- "$mlxcel" trace "$llama" --ids 1,2,3 --steps 4 -o "$work/t.safetensors"
check "trace header" 0 'layer_l2' -- head -c 400 "$work/t.safetensors"
check "trace prompt" 0 '' -- "$mlxcel" trace "$llama" --prompt Hi -o "$work/t.safetensors"
echo '[{"role":"user","content":"hi"}]' >"$work/m.json"
check "trace messages" 0 '' -- "$mlxcel" trace "$llama" --messages "$work/m.json" \
    -o "$work/t.safetensors"
check "trace needs one prompt" 2 'give one of' -- "$mlxcel" trace "$llama" -o "$work/t.safetensors"
check "trace bad id" 2 'not in' -- "$mlxcel" trace "$llama" --ids 99999 -o "$work/t.safetensors"
check "bench" 0 'pp8' -- "$mlxcel" bench "$llama" -p 8 -n 4 -r 1
check "bench of no backend" 2 '' -- "$mlxcel" bench "$llama" -p 8 -n 4 -r 1 --backend cpu,
check "bench limits" 0 'missing: ' -- "$mlxcel" bench "$llama" -p 8 -n 4 -r 1 -t 1 --limits
check "bench limits json" 0 '"kernel":"matmul_' -- "$mlxcel" bench "$llama" -p 0 -n 4 -r 1 -t 1 --limits --json
check "bench beyond the context" 1 'context of 2048' -- "$mlxcel" bench "$llama" -p 3000 -n 0 -r 1
check "bench json" 0 '"n_gen":4' -- "$mlxcel" bench "$llama" -p 0 -n 4 -r 1 -np 2 --json

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
