#!/bin/sh
# Installs the Debian packages that the build and the tests need: deps.sh [--dev]. Nothing is written when nothing is
# missing, and there is no stamp to go stale: dpkg is asked each time. Exit 2 with the command to run when not root.
set -eu

packages='gcc libc6-dev pkg-config ca-certificates
libnng-dev libmbedtls-dev libsodium-dev libopenblas-dev libcbor-dev libinih-dev
libsqlite3-dev libcurl4-openssl-dev libjansson-dev check iproute2'
[ "${1-}" != --dev ] || packages="$packages clang clang-tidy"

# Any Python from 3.11 on serves if it can make environments and compile a module; else it is Debian's.
. "$(dirname "$0")/python.sh"
[ -x .venv/bin/python ] || [ -n "$(find_python)" ] || packages="$packages python3 python3-venv python3-dev"

if ! command -v dpkg-query >/dev/null; then
    echo "deps: not a Debian system; the packages would be:" $packages >&2
    exit 0 # what is really missing is named by the probe of the build
fi

# shellcheck disable=SC2086
missing=$({
    printf '%s\n' $packages
    dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' $packages 2>/dev/null |
        sed -n 's/^installed \([^:]*\).*/have \1/p'
} | awk '$1 == "have" { delete want[$2]; next } { want[$1] } END { for (p in want) print p }' | sort)
[ -n "$missing" ] || exit 0

# shellcheck disable=SC2086
set -- $missing
if [ "$(id -u)" != 0 ]; then
    echo "deps: packages are missing; run: sudo apt-get update && sudo apt-get install -y --no-install-recommends $*" >&2
    exit 2
fi
echo "deps: installing $*"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt-get update -qq >"$log" 2>&1 </dev/null &&
    apt-get install -y -qq --no-install-recommends "$@" >>"$log" 2>&1 </dev/null || {
    cat "$log" >&2
    echo "deps: apt-get failed; its output is above" >&2
    exit 1
}
