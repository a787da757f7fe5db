#!/bin/sh
# run-tests.sh [--only REGEX | --skip REGEX] [--pytest PYTHON] CHECK-PROGRAM...
# Runs each Check program and pytest, goes on after a failure, and ends with the totals in one line. Fails when anything
# failed, and when nothing ran.
set -u
only=. skip='^$' python=
while :; do
    case ${1-} in
    --only) only=$2 ;;
    --skip) skip=$2 ;;
    --pytest) python=$2 ;;
    *) break ;;
    esac
    shift 2
done

limit=${TEST_TIMEOUT:-300} # seconds for one program; each of its tests has a limit of its own
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
passed=0 failed=0 skipped=0 bad=

for t in "$@"; do
    name=${t##*/}
    printf '%s\n' "$name" | grep -Eq -- "$only" || continue
    ! printf '%s\n' "$name" | grep -Eq -- "$skip" || continue
    timeout -k 10 "$limit" "$t" >"$out/log" 2>&1 </dev/null
    code=$?
    # Check's own totals, one line a suite runner: "90%: Checks: 10, Failures: 1, Errors: 0"
    set -- $(sed -n 's/^[0-9]*%: Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\)$/\1 \2 \3/p' "$out/log" |
        awk '{ n += $1; f += $2 + $3 } END { print n + 0, f + 0 }')
    [ "$code" = 0 ] || [ "$2" != 0 ] || set -- "$1" 1 # died outside a test
    [ "$1" != 0 ] || [ "$2" != 0 ] || set -- 0 1      # ran no test
    if [ "$2" = 0 ]; then
        echo "ok    $name ($1)"
    else
        echo "FAIL  $name (exit $code)"
        [ "$code" != 124 ] && [ "$code" != 137 ] || echo "      stopped after $limit s (TEST_TIMEOUT)"
        sed 's/^/      /' "$out/log"
        bad="$bad $name"
    fi
    failed=$((failed + $2))
    [ "$1" -lt "$2" ] || passed=$((passed + $1 - $2))
done

if [ -n "$python" ]; then
    "$python" -m pytest tests/python --junitxml="$out/junit.xml" </dev/null
    code=$?
    set -- $(sed -n 's/.*<testsuite [^>]*errors="\([0-9]*\)" failures="\([0-9]*\)" skipped="\([0-9]*\)" tests="\([0-9]*\)".*/\1 \2 \3 \4/p' \
        "$out/junit.xml" 2>/dev/null)
    [ $# = 4 ] || set -- 1 0 0 1 # pytest itself did not get to its end
    [ "$code" = 0 ] || [ $(($1 + $2)) != 0 ] || set -- 1 0 0 1
    [ "$code" = 0 ] || bad="$bad pytest"
    failed=$((failed + $1 + $2))
    skipped=$((skipped + $3))
    passed=$((passed + $4 - $1 - $2 - $3))
fi

[ -z "$bad" ] || echo "failed:$bad"
echo "$passed passed, $failed failed, $skipped skipped"
[ $((passed + failed)) != 0 ] || echo "no test was run" >&2
[ "$failed" = 0 ] && [ "$passed" != 0 ]
