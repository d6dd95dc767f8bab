#!/bin/bash
# ./dev as a newcomer meets it: the list of verbs, usage errors, and what it says when packages are
# missing and it may not install them. apt, sudo and the package list are stood in for.
set -uo pipefail
source=${MXC_SOURCE:-$(dirname "$(readlink -f "$0")")/../..}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failures=0

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

tool() { # NAME SCRIPT
    printf '#!/bin/bash\n%s\n' "$2" >"$dir/bin/$1"
    chmod +x "$dir/bin/$1"
}

# A copy, so that logs and builds of the test do not touch the tree.
clients=tests/server/clients/requirements.txt
plugin=tests/xla/requirements.txt
mkdir -p "$dir/bin" "$dir/tree/${clients%/*}" "$dir/tree/${plugin%/*}"
cp "$source/dev" "$dir/tree/dev"
for file in $clients $plugin; do
    cp "$source/$file" "$dir/tree/$file"
done
dev=$dir/tree/dev

out=$("$dev") || fail "no verb: status $?"
for verb in setup build demo check oracle bench fuzz corpus fmt install; do
    grep -qE "^  $verb( |$)" <<<"$out" || fail "$verb is not listed"
done
out=$("$dev" nonsense 2>&1)
[ $? -eq 2 ] || fail "unknown verb: status is not 2"
grep -q 'no verb "nonsense"' <<<"$out" || fail "unknown verb: $out"
"$dev" check --nonsense >/dev/null 2>&1
[ $? -eq 2 ] || fail "unknown option: status is not 2"
"$dev" oracle "$dir/none" >/dev/null 2>&1
[ $? -eq 2 ] || fail "oracle without a folder: status is not 2"
"$dev" corpus nonsense >/dev/null 2>&1
[ $? -eq 2 ] || fail "corpus of no fuzzer: status is not 2"

# All but two packages are there; not root; no sudo that works.
tool id 'echo 1000'
tool sudo 'exit 1'
tool dpkg-query 'shift 2; for p in "$@"; do
    case $p in gcc | cmake) ;; *) echo "$p installed" ;; esac
done'
tool apt-get 'echo "apt-get $*" >>"'"$dir"'/calls"'
# Makes the folder that the packages go to, as the real one does.
tool python3 'echo "$*" >>"'"$dir"'/python"
[ ! -e "'"$dir"'/offline" ] || exit 1
[ "$2" != venv ] || mkdir -p "$4"
while [ $# -gt 1 ]; do
    [ "$1" != --target ] || mkdir -p "$2"
    shift
done'
installs() { # FILE: how often packages of this file were installed
    grep -c -- " install .*--require-hashes .*-r $1\$" "$dir/python"
}
out=$(PATH=$dir/bin:$PATH "$dev" build 2>&1 </dev/null)
[ $? -eq 1 ] || fail "no root: status is not 1"
grep -qF '    apt-get update && apt-get install -y --no-install-recommends gcc cmake' <<<"$out" ||
    fail "no root: the line to run is not shown: $out"
[ ! -e "$dir/calls" ] || fail "no root: apt was called"

# Root: exactly what is missing is installed, and a failure stops with the log's end.
tool id 'echo 0'
tool dpkg-query 'shift 2; for p in "$@"; do
    [ -e "'"$dir"'/calls" ] || [ "$p" != gcc ] && echo "$p installed"
done'
out=$(PATH=$dir/bin:$PATH "$dev" setup 2>&1 </dev/null) || fail "setup: status $?: $out"
[ "$(cat "$dir/calls")" = "apt-get update
apt-get install -y --no-install-recommends gcc" ] || fail "setup called: $(cat "$dir/calls")"
for file in $clients $plugin; do
    [ "$(installs $file)" -eq 1 ] || fail "setup installed $file as: $(cat "$dir/python")"
done
[ "$(grep -c install "$dir/python")" -eq 2 ] || fail "setup called python3: $(cat "$dir/python")"
: >"$dir/calls"
: >"$dir/python"
PATH=$dir/bin:$PATH "$dev" setup >/dev/null 2>&1 </dev/null || fail "setup again: status $?"
[ ! -s "$dir/calls" ] || fail "setup again called apt"
[ ! -s "$dir/python" ] || fail "setup again called python3: $(cat "$dir/python")"
# What changed is installed anew, and until that has worked it is wanting.
for file in $clients $plugin; do
    echo "# changed" >>"$dir/tree/$file"
    : >"$dir/python"
    touch "$dir/offline"
    out=$(PATH=$dir/bin:$PATH "$dev" setup 2>&1 </dev/null)
    [ $? -eq 1 ] && grep -q FAILED <<<"$out" || fail "setup, failing $file: $out"
    rm "$dir/offline"
    : >"$dir/python"
    PATH=$dir/bin:$PATH "$dev" setup >/dev/null 2>&1 </dev/null || fail "setup, $file: status $?"
    [ "$(installs $file)" -eq 1 ] && [ "$(grep -c install "$dir/python")" -eq 1 ] ||
        fail "setup, $file changed: $(cat "$dir/python")"
done
# A check installs what is wanting; where that cannot be, it fails and says what to do.
check_of() { # CHECK
    (cd "$dir/tree" && eval "$(sed -n "/^clients=/,/^verb_setup/p" dev | sed '$d')" &&
        PATH=$dir/bin:$PATH $1) 2>&1
}
: >"$dir/python"
for name in have_clients have_plugin; do
    out=$(check_of $name) || fail "$name: $out"
    grep -qE "^ +check \"${name#have_}\" $name\$" "$source/dev" || fail "check does not ask: $name"
done
[ ! -s "$dir/python" ] || fail "the check installed again: $(cat "$dir/python")"
rm -r "$dir/tree/build/clients" "$dir/tree/build/xla"
touch "$dir/offline"
for name in have_clients have_plugin; do
    out=$(check_of $name) && fail "$name, with nothing there: no failure"
    tail -n 1 <<<"$out" | grep -q './dev setup installs' || fail "$name, with nothing there: $out"
done
rm "$dir/offline"
: >"$dir/python"
for name in have_clients have_plugin; do
    out=$(check_of $name) || fail "$name, installing: $out"
done
[ "$(installs $clients) $(installs $plugin)" = "1 1" ] || fail "checks: $(cat "$dir/python")"
rm "$dir/calls"
tool apt-get 'echo "no such package"; exit 100'
out=$(PATH=$dir/bin:$PATH "$dev" setup 2>&1 </dev/null)
[ $? -eq 1 ] || fail "failing apt: status is not 1"
grep -q 'FAILED' <<<"$out" && grep -q 'no such package' <<<"$out" || fail "failing apt: $out"

# Root is not needed where sudo works.
tool id 'echo 1000'
tool sudo '[ "$1" = -n ] && exit 0; "$@"'
tool apt-get 'echo "apt-get $*" >>"'"$dir"'/calls"'
PATH=$dir/bin:$PATH "$dev" setup >/dev/null 2>&1 </dev/null || fail "sudo: status $?"
grep -q 'install' "$dir/calls" || fail "sudo: apt was not called"

[ $failures -eq 0 ] && echo "./dev behaves"
exit $((failures > 0))
