#!/usr/bin/env bash
# The programs of examples/, on a small checkpoint.
# MXC_PROGRAM is the binary (the examples are beside it), MXC_TEST_DATA tests/data.
set -u
bin=$(dirname "$MXC_PROGRAM")
complete=$bin/example_complete batch=$bin/example_batch model=$MXC_TEST_DATA/golden/llama
passed=0 failed=0
check() {
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
    else
        echo "FAILED: $1"
        failed=$((failed + 1))
    fi
}
"$complete" "$model" 'say "hi"' 6 | grep -q 'prompt tokens, [1-6] generated'
check "complete" $?
"$complete" "$model/nowhere" hi >/dev/null 2>&1
[ $? = 1 ]
check "complete: missing model" $?
alone=$(printf 'The lamp\n' | "$batch" "$model" 8)
together=$(printf 'The lamp\nA ferry\nOne\nTwo\n' | "$batch" "$model" 8 | head -n 1)
[ -n "$alone" ] && [ "$alone" = "$together" ]
check "batch: an answer does not depend on its neighbours" $?
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
