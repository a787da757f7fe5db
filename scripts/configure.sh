#!/bin/sh
# Prints $(BUILD)/config.mk: the compiler's target, where the libraries are and how to link them. A missing part is one
# line on stderr that names the Debian package, and exit code 2. NNG and mbedTLS come without pkg-config files on Debian
# 12, so they are compiled against instead.
set -eu

fail() {
    echo "configure: $1 is missing: run \`make deps\` as root, or install the package $2" >&2
    exit 2
}

CC=${CC:-cc}
command -v "${CC%% *}" >/dev/null || fail "the C compiler '${CC%% *}'" "$(case $CC in *clang*) echo clang ;; *) echo gcc ;; esac)"
command -v pkg-config >/dev/null || fail pkg-config pkg-config

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
echo 'int main(void) { return 0; }' >"$tmp/t.c"
$CC "$tmp/t.c" -o "$tmp/t" 2>"$tmp/log" || fail "the C library (headers, start files) of '$CC'" "libc6-dev"

# header, library, package -> checks both and notes the path of the header
files=
probe() {
    printf '#include <%s>\nint main(void) { return 0; }\n' "$1" >"$tmp/t.c"
    # shellcheck disable=SC2086
    $CC $cppflags -H -fsyntax-only "$tmp/t.c" 2>"$tmp/headers" || fail "<$1>" "$3"
    printf 'int main(void) { return 0; }\n' >"$tmp/t.c"
    # shellcheck disable=SC2086
    $CC "$tmp/t.c" $2 -o "$tmp/t" 2>"$tmp/log" || fail "the library for '$2'" "$3"
    files="$files $(sed -n 's/^\. //p' "$tmp/headers" | head -1)"
}

cppflags=
libs_all=
# module, header, package
pkg() {
    pkg-config --exists "$1" || fail "$1" "$3"
    # System headers are not ours to warn about.
    flags=$(pkg-config --cflags-only-I "$1" | sed 's/-I */-isystem /g')
    libs=$(pkg-config --libs "$1")
    cppflags="$cppflags $flags"
    probe "$2" "$libs" "$3"
    libs_all="$libs_all $libs"
}

probe nng/nng.h -lnng libnng-dev
probe mbedtls/ssl.h "-lmbedtls -lmbedx509 -lmbedcrypto" libmbedtls-dev
libs_all="-lnng -lmbedtls -lmbedx509 -lmbedcrypto"
pkg libsodium sodium.h libsodium-dev
pkg openblas cblas.h libopenblas-dev
pkg libcbor cbor.h libcbor-dev
pkg inih ini.h libinih-dev
pkg sqlite3 sqlite3.h libsqlite3-dev
pkg libcurl curl/curl.h libcurl4-openssl-dev
pkg jansson jansson.h libjansson-dev
libs_all="$libs_all -lm"

# Only the tests need Check; the Makefile says so when they are asked for.
check_libs=
if pkg-config --exists check; then
    check_libs=$(pkg-config --libs check)
fi

machine=$($CC -dumpmachine)
cat <<END
CONFIGURED_KEY := ${CONFIG_KEY-}
CONFIGURED_FILES := $(echo $files)
ARCH := ${machine%%-*}
LIB_CPPFLAGS := $(echo $cppflags)
LIBS := $(echo $libs_all)
CHECK_LIBS := $check_libs
END
