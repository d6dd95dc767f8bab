#!/usr/bin/env bash
# Downloads by the program that are cut off, lied to, killed, out of disk, or two at a time: none
# leaves an entry that is not whole, and the next one goes on from what arrived. The hub is hub.py.
# MXC_PROGRAM is the binary, MXC_SOURCE the project, MXC_TEST_DATA tests/data.
set -u
command -v python3 >/dev/null || exit 77
mlxcel=$MXC_PROGRAM
work=$(mktemp -d)
hub='' mounted=''
clean() {
    [ -z "$hub" ] || kill "$hub" 2>/dev/null
    [ -z "$mounted" ] || umount "$mounted"
    rm -rf "$work"
}
trap clean EXIT
export MLXCEL_MODELS_DIR=$work/models MLXCEL_CACHE_DIR=$work/cache MLXCEL_NO_PROGRESS=1
passed=0 failed=0
entry=$MLXCEL_MODELS_DIR/own/tiny

fault() {
    echo "FAILED: $1"
    [ ! -s "$work/out" ] || head -n 5 "$work/out" | sed 's/^/    /'
    failed=$((failed + 1))
}

# holds NAME COMMAND...: the command succeeds.
holds() {
    if "${@:2}"; then passed=$((passed + 1)); else fault "$1"; fi
}

# get NAME STATUS PATTERN [COMMAND...]: a download, with the command before it.
get() {
    "${@:4}" "$mlxcel" download own/tiny >"$work/out" 2>&1 </dev/null
    local got=$?
    if [ "$got" = "$2" ] && grep -qE -- "$3" "$work/out"; then
        passed=$((passed + 1))
    else
        fault "$1: exit status $got, expected $2 and: $3"
    fi
    [ "$2" = 0 ] || holds "$1: one line" [ "$(grep -c '^mlxcel: error: ' "$work/out")" = 1 ]
}

generate() {
    "$mlxcel" generate own/tiny --no-chat-template -p Hello -n 1 >"$work/out" 2>&1 </dev/null
}

# Nothing of the store is taken for the model.
absent() {
    holds "$1: no entry" [ ! -e "$entry" ]
    "$mlxcel" list >"$work/out" 2>&1
    holds "$1: not listed" eval '! grep -q tiny "$work/out"'
    generate
    holds "$1: not run" [ $? = 1 ]
    holds "$1: not found" grep -q 'error: no model "own/tiny"' "$work/out"
}

whole() {
    holds "$1: same files" eval '(cd "$work/hub" && for f in *; do cmp "$f" "$entry/$f" || exit 1; done)'
    generate
    holds "$1: runs" [ $? = 0 ]
    holds "$1: nothing is left" [ ! -e "$MLXCEL_MODELS_DIR/.partial" ]
    rm -rf "$MLXCEL_MODELS_DIR"
}

part_bytes() { cat "$MLXCEL_MODELS_DIR"/.partial/own/tiny/*.partial 2>/dev/null | wc -c; }

# Waits until so many bytes of the weights have arrived.
await() {
    for _ in $(seq 200); do
        [ "$(part_bytes)" -lt "$1" ] || return 0
        sleep 0.05
    done
    return 1
}

mkdir "$work/hub"
cp "$MXC_TEST_DATA"/golden/llama/*.json "$MXC_TEST_DATA"/golden/llama/model.safetensors "$work/hub"
size=$(stat -c %s "$work/hub/model.safetensors")
control=$work/hub.control
python3 "$MXC_SOURCE/tests/cli/hub.py" "$work/hub" >"$work/port" &
hub=$!
for _ in $(seq 100); do [ -s "$work/port" ] && break || sleep 0.05; done
HF_ENDPOINT=http://127.0.0.1:$(cat "$work/port")
export HF_ENDPOINT

get "whole" 0 tiny
whole "whole"

# Each try gets a little further; the last one is whole.
echo "close $((size / 3))" >"$control"
get "closed in mid-file" 0 tiny
whole "closed in mid-file"

echo long >"$control"
get "wrong length" 1 'model.safetensors.*longer than'
absent "wrong length"
rm -rf "$MLXCEL_MODELS_DIR"

echo lie >"$control"
get "wrong hash" 1 'model.safetensors.*wrong hash'
absent "wrong hash"
rm -f "$control"
get "wrong hash, mended" 0 tiny
whole "wrong hash, mended"

# Killed in the middle, and what it left damaged.
for damage in none byte longer; do
    echo "slow $((size / 2))" >"$control"
    "$mlxcel" download own/tiny >/dev/null 2>&1 </dev/null &
    pid=$!
    holds "killed: half has arrived" await $((size / 2))
    get "two at once" 1 'another process'
    kill -9 $pid
    wait $pid 2>/dev/null
    absent "killed"
    holds "killed: the part is kept" [ "$(part_bytes)" -ge $((size / 2)) ]
    part=$(echo "$MLXCEL_MODELS_DIR"/.partial/own/tiny/*.partial)
    case $damage in
    byte) printf 'X' | dd of="$part" bs=1 seek=1000 conv=notrunc status=none ;;
    longer) head -c "$size" /dev/zero >>"$part" ;;
    esac
    rm -f "$control"
    get "killed, then resumed ($damage)" 0 tiny
    whole "killed, then resumed ($damage)"
done

# Two that start together: one or both succeed, and the entry is whole.
"$mlxcel" download own/tiny >"$work/a" 2>&1 </dev/null &
a=$!
"$mlxcel" download own/tiny >"$work/b" 2>&1 </dev/null &
b=$!
wait $a; a=$?
wait $b; b=$?
holds "a pair: one succeeds" [ $((a * b)) = 0 ]
whole "a pair"

# A file may not grow beyond a limit; a disk that fills up.
limited() { (trap '' XFSZ; ulimit -f $((size / 2048)); "$@"); }
get "file size limit" 1 'model.safetensors.*[Ff]ile too large' limited
absent "file size limit"
get "file size limit, lifted" 0 tiny
whole "file size limit, lifted"

mkdir "$work/disk"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=$((size + (256 << 10))) none "$work/disk" 2>/dev/null; then
    mounted=$work/disk
    export MLXCEL_MODELS_DIR=$mounted/models
    entry=$MLXCEL_MODELS_DIR/own/tiny
    echo "slow $((size / 2))" >"$control"
    "$mlxcel" download own/tiny >"$work/out" 2>&1 </dev/null &
    pid=$!
    holds "disk full: half has arrived" await $((size / 2))
    head -c "$size" /dev/zero >"$mounted/filler" 2>/dev/null
    wait $pid
    holds "disk full: refused" [ $? = 1 ]
    holds "disk full: said so" grep -qE 'error.*No space left' "$work/out"
    absent "disk full"
    get "disk full from the start" 1 'are needed'
    rm -f "$mounted/filler" "$control"
    get "disk full, then room" 0 tiny
    whole "disk full, then room"
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
