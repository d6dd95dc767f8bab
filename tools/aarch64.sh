#!/bin/bash
# The aarch64 kernels: cross-compiles the kernels, what they need of base/, quant/ and format/, the
# tests of tests/kernels and the kernel benchmark, and runs the tests under qemu-user: on a CPU with
# matrix products, on one with dot products only, and on one with neither. The benchmark says
# which level it sees; its figures mean nothing there. cmocka and jansson for arm64 are fetched into
# OUT/root the first time, with a state of apt of their own: the machine stays as it is. Needs
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user.
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
    src/backend/cpu/kernels/{scalar,neon,i8mm}/*.c tests/kernels/synthetic.c; do
    object=$out/${source//\//_}.o
    level=()
    [[ $source != */neon/* ]] || level=(-O3 -march=armv8.2-a+dotprod)
    [[ $source != */i8mm/* ]] || level=(-O3 -march=armv8.2-a+dotprod+i8mm+bf16)
    "${cc[@]}" "${level[@]}" -c "$source" -o "$object"
    objects+=("$object")
done
libraries=(-L"$lib" -lcmocka -ljansson -lpthread -lm)
emulated() { # CPU PROGRAM [ARGUMENT...]
    QEMU_LD_PREFIX=/usr/aarch64-linux-gnu qemu-aarch64 -cpu "$1" -E LD_LIBRARY_PATH="$lib" "${@:2}"
}

declare -A levels=([max]=i8mm [neoverse-n1]=neon [cortex-a53]=scalar)
status=0
"${cc[@]}" bench/bench_kernels.c "${objects[@]}" -o "$out/bench_kernels" "${libraries[@]}"
for cpu in "${!levels[@]}"; do
    seen=$(emulated "$cpu" "$out/bench_kernels" -s 0 none)
    echo "$cpu: ${seen%%$'\n'*}"
    [[ $seen == *"best level ${levels[$cpu]}"$'\n'* ]] || status=1
done
for test in tests/kernels/test_*.c; do
    name=$(basename "$test" .c)
    "${cc[@]}" "$test" "${objects[@]}" -o "$out/$name" "${libraries[@]}"
    for cpu in "${!levels[@]}"; do
        echo "$name on $cpu"
        emulated "$cpu" "$out/$name" || status=1
    done
done
exit $status
