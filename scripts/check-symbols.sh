#!/bin/sh
# check-symbols.sh LIB.so LIB.a HEADER...: the shared library exports exactly the functions that an outward header
# declares with TN_API, and no other name than tn_ or tni_ leaves an object, so that the static library fits any program.
set -eu
so=$1 ar=$2
shift 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export LC_ALL=C

nm -D --defined-only "$so" | awk '{ print $NF }' | sort -u >"$tmp/exported"
# Preprocessed, since macros declare some. A declaration begins with what TN_API stands for; its name is the word before the first
# bracket or before ; [ and may be on the next line.
for header; do echo "#include \"$header\""; done | ${CC:-cc} -std=c11 -D_GNU_SOURCE -I. -E -P -xc - |
    sed 's/__attribute__((visibility("default")))/\nTN_API/g' | awk '
    /^TN_API/ { decl = ""; on = 1 }
    on {
        decl = decl " " $0
        # attributes are macros in capitals, some with arguments
        text = decl
        while (match(text, /[ *]tn_[a-z0-9_]+ *[(;[]/)) {
            name = substr(text, RSTART + 1, RLENGTH - 1)
            sub(/ *[(;[]$/, "", name)
            print name
            on = 0
            break
        }
    }' | sort -u >"$tmp/declared"

status=0
report() { # FILE TEXT
    [ -s "$1" ] || return 0
    sed "s|^|check-symbols: $2: |" "$1" >&2
    status=1
}
comm -23 "$tmp/exported" "$tmp/declared" >"$tmp/undeclared"
comm -13 "$tmp/exported" "$tmp/declared" >"$tmp/undefined"
nm -g --defined-only "$ar" | awk 'NF == 3 { print $3 }' | grep -Ev '^tni?_' | sort -u >"$tmp/foreign" || true
report "$tmp/undeclared" "exported, but no header declares it with TN_API"
report "$tmp/undefined" "declared with TN_API, but nothing defines it"
report "$tmp/foreign" "a global name without tn_ or tni_ in front"
[ "$status" != 0 ] || echo "check-symbols: ok ($(wc -l <"$tmp/exported") exported)"
exit "$status"
