#!/bin/bash
# The aarch64 kernels: cross-compiles the kernels, what they need of base/, quant/ and format/, and
# the tests of tests/kernels, and runs those under qemu-user, on a CPU with dot products and on one
# without. cmocka and jansson for arm64 are fetched into OUT/root the first time, with a state of apt
# of their own: the machine stays as it is. Needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross,
# qemu-user.
# Usage: aarch64.sh OUT
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
mkdir -p "$1"
out=$(readlink -f "$1")
root=$out/root
lib=$root/usr/lib/aarch64-linux-gnu

fetch() {
    local apt=$out/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    touch "$apt/status"
    cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Debug::NoLocking "true";
END
    (cd "$apt" && export APT_CONFIG=$apt/apt.conf && apt-get update -q &&
        apt-get download -q libcmocka0 libcmocka-dev libjansson4 libjansson-dev)
    local package
    for package in "$apt"/*.deb; do
        dpkg -x "$package" "$root.part"
    done
    rm -rf "$apt"
    mv "$root.part" "$root"
}

[ -d "$root" ] || fetch
cc=(aarch64-linux-gnu-gcc -std=c11 -O2 -Wall -Wextra -Wshadow -Wconversion -Wvla -Werror
    -ffp-contract=off -Isrc -Iinclude -Itests -isystem "$root/usr/include")
objects=()
for source in src/base/*.c src/quant/*.c src/format/*.c src/backend/cpu/kernels/*.c \
    src/backend/cpu/kernels/scalar/*.c src/backend/cpu/kernels/neon/*.c tests/kernels/synthetic.c; do
    object=$out/${source//\//_}.o
    level=()
    [[ $source != */neon/* ]] || level=(-O3 -march=armv8.2-a+dotprod)
    "${cc[@]}" "${level[@]}" -c "$source" -o "$object"
    objects+=("$object")
done
status=0
for test in tests/kernels/test_*.c; do
    name=$(basename "$test" .c)
    "${cc[@]}" "$test" "${objects[@]}" -o "$out/$name" -L"$lib" -lcmocka -ljansson -lpthread -lm
    for cpu in max cortex-a53; do
        echo "$name on $cpu"
        QEMU_LD_PREFIX=/usr/aarch64-linux-gnu qemu-aarch64 -cpu $cpu \
            -E LD_LIBRARY_PATH="$lib" "$out/$name" || status=1
    done
done
exit $status
