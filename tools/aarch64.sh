#!/bin/bash
# The aarch64 kernels: cross-compiles the kernels, what they need of base/, quant/ and format/, and
# the tests of tests/kernels; runs the tests under qemu-user, on a CPU with dot products and on one
# without. ROOT holds cmocka and jansson for arm64 (./dev setup unpacks them there).
# Usage: aarch64.sh ROOT OUT
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
root=$1 out=$2 lib=$1/usr/lib/aarch64-linux-gnu
cc=(aarch64-linux-gnu-gcc -std=c11 -O2 -Wall -Wextra -Wshadow -Wconversion -Wvla -Werror
    -ffp-contract=off -Isrc -Iinclude -Itests -isystem "$root/usr/include")
mkdir -p "$out"
objects=()
for source in src/base/*.c src/quant/*.c src/format/*.c src/backend/cpu/kernels/*.c \
    src/backend/cpu/kernels/scalar/*.c src/backend/cpu/kernels/neon/*.c tests/kernels/synthetic.c; do
    object=$out/${source//\//_}.o
    objects+=("$object")
    level=()
    [[ $source != */neon/* ]] || level=(-O3 -march=armv8.2-a+dotprod)
    if [ ! "$object" -nt "$source" ]; then echo "$source" "${level[@]}"; fi
done | while read -r source level; do
    # shellcheck disable=SC2086
    "${cc[@]}" $level -c "$source" -o "$out/${source//\//_}.o"
done
for source in src/base/*.c src/quant/*.c src/format/*.c src/backend/cpu/kernels/*.c \
    src/backend/cpu/kernels/scalar/*.c src/backend/cpu/kernels/neon/*.c tests/kernels/synthetic.c; do
    objects+=("$out/${source//\//_}.o")
done
status=0
for test in tests/kernels/test_*.c; do
    name=$(basename "$test" .c)
    "${cc[@]}" "$test" "${objects[@]}" -o "$out/$name" -L"$lib" -lcmocka -ljansson -lpthread -lm
    for cpu in max cortex-a53; do
        echo "$name on $cpu"
        QEMU_LD_PREFIX=/usr/aarch64-linux-gnu LD_LIBRARY_PATH='' qemu-aarch64 -cpu $cpu \
            -E LD_LIBRARY_PATH="$lib" "$out/$name" || status=1
    done
done
exit $status
