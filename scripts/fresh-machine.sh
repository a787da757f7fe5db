#!/bin/bash
# Proves that a make target works on a machine that has nothing of the project: scripts/fresh-machine.sh [MAKE ARGUMENT...]
#
# Lays a minimal Debian with make, git and ca-certificates alone into a temporary directory, from the mirror that this
# machine's apt uses, clones the committed state of this repository into it, and runs make there twice: the second time
# shows what an idle call costs. Everything is removed at the end. Needs root and debootstrap.
#
#   FRESH_BIND="PATH..."  files and directories of this machine to show read-only at the same place (package caches,
#                         pip's configuration, certificates of a private mirror)
#   FRESH_ENV="NAME..."   variables to hand on (PIP_CERT, https_proxy, ...)
#   FRESH_SUITE=bookworm  the release
#   FRESH_BEFORE=COMMAND  run in the clone before make, e.g. "make deps"
#   FRESH_SHELL=1         a shell in the clone afterwards
set -euo pipefail

die() {
    echo "fresh-machine: $*" >&2
    exit 2
}

suite=${FRESH_SUITE:-bookworm}
repo=$(cd "$(dirname "$0")/.." && pwd)

# ---- second half: inside a mount and process namespace of its own, so that nothing can be left mounted or running ----
if [ "${1-}" = --inside ]; then
    root=$2
    shift 2
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/dev/shm"
    for path in ${FRESH_BIND-}; do
        [ -e "$path" ] || die "FRESH_BIND: $path does not exist"
        if [ -d "$path" ]; then mkdir -p "$root$path"; else
            mkdir -p "$root${path%/*}"
            [ -e "$root$path" ] || : >"$root$path"
        fi
        mount --bind "$path" "$root$path"
        mount -o remount,bind,ro "$root$path"
    done
    env=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "TERM=${TERM-dumb}")
    for name in ${FRESH_ENV-}; do
        [ -z "${!name+set}" ] || env+=("$name=${!name}")
    done
    run() { # SHELL TEXT, ARGUMENT...
        local text=$1
        shift
        env -i "${env[@]}" chroot "$root" sh -c "cd /root/torchnative && $text" sh "$@"
    }
    [ -z "${FRESH_BEFORE-}" ] || run "$FRESH_BEFORE" </dev/null
    status=0
    for call in first second; do
        start=$EPOCHREALTIME
        run 'make "$@"' "$@" </dev/null || status=$?
        echo "fresh-machine: $call make $*: exit $status, $(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }") s"
        [ "$status" = 0 ] || break
    done
    [ -z "${FRESH_SHELL-}" ] || run 'exec sh -i' || true
    exit "$status"
fi

# ---- first half: the file system --------------------------------------------------------------------------------------
[ "$(id -u)" = 0 ] || die "needs root"
command -v debootstrap >/dev/null || die "needs the package debootstrap"
targets=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' | sort -u)
mirror=$(awk -v s="$suite" '$1 == s { print $2; exit }' <<<"$targets")
[ -n "$mirror" ] || die "apt on this machine knows no mirror of $suite"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/fresh.XXXXXX")
trap 'rm -rf --one-file-system "$tmp"' EXIT
root=$tmp/root
echo "fresh-machine: laying $suite into $root"
debootstrap --variant=minbase --include=make,git,ca-certificates "$suite" "$root" "$mirror" >"$tmp/debootstrap.log" 2>&1 ||
    { tail -20 "$tmp/debootstrap.log"; die "debootstrap failed"; }
awk -v s="$suite" '$1 == s || $1 == s "-updates" || $1 == s "-security" { print "deb", $2, $1, "main" }' \
    <<<"$targets" >"$root/etc/apt/sources.list"
grep -rhiE '^[[:space:]]*Acquire::' /etc/apt/apt.conf /etc/apt/apt.conf.d 2>/dev/null >"$root/etc/apt/apt.conf.d/50host" || true
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
git clone -q --no-hardlinks "$repo" "$root/root/torchnative"
echo "fresh-machine: $(git -C "$root/root/torchnative" log -1 --format='%h %s')"

unshare --mount --pid --fork --kill-child bash "$0" --inside "$root" "$@"
