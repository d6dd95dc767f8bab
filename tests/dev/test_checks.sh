#!/bin/bash
# The checks of the tree find what they are for: a small clean tree passes, and each planted breach
# is reported with its file and line.
set -uo pipefail
source=${MXC_SOURCE:-$(dirname "$(readlink -f "$0")")/../..}
check=$source/tools/check_tree.py
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failures=0

clean() {
    rm -rf "${dir:?}"/*
    mkdir -p "$dir"/src/{base,format,text,engine,cli,backend/cpu/kernels/avx2} "$dir"/tests/data
    printf '/* Memory. */\nvoid *mxc_mem_alloc(void) { return malloc(1); }\n' >"$dir/src/base/mem.c"
    printf '/* Config. */\n#include "base/mem.h"\n#include "format/gguf.h"\n/* printf() is banned */\n' \
        >"$dir/src/format/config.c"
    printf '/* Main. */\n#include "format/config.h"\nint main(void) {\n    printf("x");\n}\n' \
        >"$dir/src/cli/main.c"
    printf '/* Tile. */\n#include <immintrin.h>\n' >"$dir/src/backend/cpu/kernels/avx2/tile.c"
}

# expect CHECK "file:line: part of the message": the check fails and says so.
expect() {
    local out
    if out=$(python3 "$check" --root "$dir" "$1"); then
        echo "FAIL: $1 passed although there is: $2"
        failures=$((failures + 1))
    elif ! grep -qF -- "$2" <<<"$out"; then
        echo "FAIL: $1 does not say: $2"
        echo "$out" | sed 's/^/    /'
        failures=$((failures + 1))
    fi
    clean
}

put() { # FILE TEXT
    mkdir -p "$(dirname "$dir/$1")"
    printf '%b' "$2" >"$dir/$1"
}

clean
python3 "$check" --root "$dir" || { echo "FAIL: the clean tree does not pass"; failures=1; }

put src/text/a.c '/* A. */\n#include "format/config.h"\n'
expect layers 'src/text/a.c:2: "format/config.h": text (L2) may not include format (L2)'
put src/base/a.c '/* A. */\n\n#include "engine/engine.h"\n'
expect layers 'src/base/a.c:3: "engine/engine.h": base (L0) may not include engine (L4)'
put src/engine/a.c '/* A. */\n#include "backend/cpu/plan.h"\n'
expect layers 'src/engine/a.c:2: "backend/cpu/plan.h": only backend.h'
put src/engine/step.c '/* A. */\n#include "models/family.h"\n'
expect layers 'src/engine/step.c:2: "models/family.h": only engine/load.c'
put src/cli/a.c '/* A. */\n#include "engine/engine.h"\n'
expect layers 'src/cli/a.c:2: "engine/engine.h"'
put src/odd/a.c '/* A. */\n'
expect layers 'src/odd/a.c:1: folder src/odd has no layer'
put src/format/a.c '/* A. */\n#include "../base/mem.h"\n'
expect layers 'src/format/a.c:2: "../base/mem.h"'

put src/base/a.c "/* $(printf 'x%.0s' {1..100}) */\n"
expect sizes 'src/base/a.c:1: 106 columns'
put src/base/a.c "/* A. */\n$(printf '\\n%.0s' {1..1500})"
expect sizes 'src/base/a.c:1501: 1501 lines'
put src/base/a.c "/* A. */\nstatic int f(int a) {\n$(printf '    a++;\\n%.0s' {1..199})}\n"
expect sizes 'src/base/a.c:2: a function of 201 lines'
put src/base/a.c "/* A. */\nstatic int f(int a,\n             int b) {\n$(printf '    a++;\\n%.0s' {1..199})}\n"
expect sizes 'src/base/a.c:3: a function of 201 lines'
put src/base/gen/a.c "/* A. */\n$(printf '\\n%.0s' {1..1600})"
python3 "$check" --root "$dir" sizes >/dev/null || { echo "FAIL: gen/ is not apart"; failures=1; }
clean

for call in strcpy strcat sprintf gets alloca; do
    put tests/a.c "/* A. */\nvoid f(void) {\n    $call(a);\n}\n"
    expect calls "tests/a.c:3: $call() is banned"
done
for call in malloc calloc realloc free strdup; do
    put src/format/a.c "/* A. */\nvoid f(void) { $call(a); }\n"
    expect calls "src/format/a.c:2: $call() outside base/mem.c"
done
for call in printf exit abort; do
    put src/format/a.c "/* A. */\nvoid f(void) { $call(a); }\n"
    expect calls "src/format/a.c:2: $call() in the library"
done
put src/format/a.c '/* A. */\nvoid f(void) { fputs("", stderr); }\n'
expect calls 'src/format/a.c:2: stderr in the library'
put src/format/a.c '/* A. */\n#include <immintrin.h>\n'
expect calls 'src/format/a.c:2: intrinsics'

put src/base/a.c "/* TO""DO: later */\n"
expect words 'src/base/a.c:1: an unfinished mark'
put docs/a.md "see /ro""ot/x\n"
expect words 'docs/a.md:1: a path of one machine'
put docs/a.md "see ../sha""red/x\n"
expect words 'docs/a.md:1: a path outside'
put dev "curl https://py""pi.org/simple\n"
expect words 'dev:1: the host of a package registry'

for i in 1 2 3 4 5 6; do head -c 12000000 /dev/zero >"$dir/tests/data/$i"; done
expect data 'tests/data:1: 72.0 MB in all'

put src/base/a.c 'int x;\n'
expect heads 'src/base/a.c:1: does not open with a comment'

# What a build exports.
put a.c 'int mxc_fine(void);\nint mxc_fine(void) { return 1; }\nint loose(void);\nint loose(void) { return 1; }\n'
mkdir "$dir/b"
cc -c "$dir/a.c" -o "$dir/b/a.o" && ar rcs "$dir/b/libmxc_a.a" "$dir/b/a.o" || exit 1
out=$(python3 "$source/tools/check_symbols.py" "$dir/b") && { echo "FAIL: loose passes"; failures=1; }
grep -q 'libmxc_a.a: loose: not mxc_' <<<"$out" || { echo "FAIL: $out"; failures=1; }
grep -q fine <<<"$out" && { echo "FAIL: $out"; failures=1; }
put mlxcel.h '/* int mlxcel_old(void); */\ntypedef int (*mlxcel_fn)(int a);\nint mlxcel_a(void);\nint mlxcel_b(void);\n'
put c.c 'int mlxcel_a(void) { return 1; }\nint mlxcel_c(void) { return 1; }\n'
cc -shared -fPIC "$dir/c.c" -o "$dir/b/libmlxcel.so" || exit 1
out=$(python3 "$source/tools/check_symbols.py" "$dir/b" "$dir/mlxcel.h")
for part in 'mlxcel_c: exported but not' 'mlxcel_b: in .* but not exported'; do
    grep -q "$part" <<<"$out" || { echo "FAIL: symbols do not say: $part: $out"; failures=1; }
done
grep -qE 'mlxcel_(a|old|fn)' <<<"$out" && { echo "FAIL: $out"; failures=1; }

[ $failures -eq 0 ] && echo "all breaches are found"
exit $((failures > 0))
