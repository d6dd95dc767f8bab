#!/bin/bash
# docs/models.md holds what `mlxcel arch --markdown` prints, between its two marks.
set -u
doc=$MXC_SOURCE/docs/models.md
want=$("$MXC_PROGRAM" arch --markdown) || exit 1
have=$(sed -n '/^<!-- mlxcel arch --markdown -->$/,/^<!-- end -->$/p' "$doc" | sed '1d;$d')
if [ -z "$have" ] || [ "$want" != "$have" ]; then
    echo "docs/models.md does not hold what mlxcel arch --markdown prints:"
    diff <(echo "$have") <(echo "$want")
    exit 1
fi
rows=$(grep -c '^| ' <<<"$have")
[ "$rows" -gt 40 ] || { echo "only $rows rows"; exit 1; }
echo "1 passed, 0 failed"
