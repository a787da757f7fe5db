#!/bin/sh
# Who may include whom: check-includes.sh [--self-test] [ROOT]. The table below is the architecture; nothing else keeps
# it true. With --self-test each rule is shown a file that breaks it, and one that does not.
set -eu

check() { # ROOT
    (cd "$1" && find core kernels privacy transport dist fed server python tests examples \( -name '*.[ch]' -o -name '*.inc' \) 2>/dev/null |
        LC_ALL=C sort | xargs awk '
    BEGIN {
        # module, and the modules whose outward header it may include besides its own files
        may["core"] = ""
        may["kernels"] = "core"
        may["privacy"] = "core kernels"
        may["transport"] = "core"
        may["dist"] = "core kernels transport"
        may["fed"] = "core kernels privacy"
        may["fed/net"] = "core kernels privacy transport fed"
        may["server"] = may["python"] = "core kernels privacy transport dist fed fed/net"
        # foreign header, and the only places that may see it
        only["^nng/"] = only["^(mbedtls|psa)/"] = "transport/"
        only["^sodium(\\.h|/)"] = "privacy/ core/random.c"
        only["^cblas\\.h$"] = "kernels/"
        only["^Python\\.h$"] = "python/"
    }
    function module(path) {
        if (path ~ /^fed\/net\//) return "fed/net"
        return substr(path, 1, index(path, "/") - 1)
    }
    function bad(why) {
        printf "%s:%d: %s\n", FILENAME, FNR, why
        errors++
    }
    function has(list, word) { return index(" " list " ", " " word " ") > 0 }
    FNR == 1 { own = module(FILENAME); seen++ }
    !/^[ \t]*#[ \t]*include/ { next }
    {
        line = $0
        sub(/^[ \t]*#[ \t]*include[ \t]*/, "", line)
        name = substr(line, 2)
        sub(/[>"].*/, "", name)
        last = name
        sub(/.*\//, "", last)
    }
    line ~ /^</ {
        if (own == "tests" || own == "examples") next
        for (pattern in only) {
            if (name !~ pattern) continue
            ok = 0
            n = split(only[pattern], places, " ")
            for (i = 1; i <= n; i++) if (index(FILENAME, places[i]) == 1) ok = 1
            if (!ok) bad("<" name "> is for " only[pattern] " only")
        }
        next
    }
    line ~ /^"/ {
        if (name ~ /(^|\/)\.\.?\// || index(name, "/") == 0) {
            bad("\"" name "\": name it from the root of the repository")
            next
        }
        if ((getline dummy < name) < 0) bad("\"" name "\" does not exist")
        close(name)
        if (last == "banned.h") bad("core/banned.h is included by the Makefile alone")
        theirs = module(name)
        if (own == "tests" || own == "examples") next # may look inside any module
        if (theirs == own) {
            outward = own
            sub(/.*\//, "", outward)
            if (FILENAME == own "/" outward ".h" && last == "internal.h")
                bad("an outward header must not include internal.h")
            next
        }
        if (!(own in may)) { bad("no module \"" own "\" in the table"); next }
        if (!has(may[own], theirs)) { bad(own " must not include " theirs " (\"" name "\")"); next }
        want = theirs
        sub(/.*\//, "", want)
        if (theirs == "core" ? last == "internal.h" : last != want ".h")
            bad("\"" name "\" is private to " theirs ": include its outward header")
        next
    }
    { bad("an include must be <...> or \"...\"") }
    END {
        if (!seen) { print "no source was found"; exit 1 }
        exit errors > 0
    }')
}

# A tree in which FILE holds INCLUDE must be refused ("bad") or accepted ("good").
expect() { # VERDICT FILE INCLUDE
    mkdir -p "$tmp/${2%/*}"
    printf '/* planted */\n#  include %s\n' "$3" >"$tmp/$2"
    if check "$tmp" >"$tmp/log" 2>&1; then verdict=good; else verdict=bad; fi
    rm "$tmp/$2"
    [ "$verdict" = "$1" ] || {
        echo "check-includes: self-test: $2 with #include $3 was found $verdict" >&2
        cat "$tmp/log" >&2
        exit 1
    }
}

self_test() {
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    for f in core/error.h core/internal.h kernels/kernels.h kernels/internal.h privacy/privacy.h transport/transport.h \
        transport/internal.h dist/dist.h fed/fed.h fed/internal.h fed/net/net.h server/server.h; do
        mkdir -p "$tmp/${f%/*}"
        : >"$tmp/$f"
    done
    expect good core/a.c '"core/error.h"'
    expect good core/a.c '<string.h>'
    expect bad core/a.c '"kernels/kernels.h"'
    expect bad core/a.c '"error.h"'
    expect bad core/a.c '"../core/error.h"'
    expect bad core/a.c '"core/missing.h"'
    expect bad core/a.c '<sodium.h>'
    expect good core/random.c '<sodium.h>'
    expect good kernels/a.c '"kernels/internal.h"'
    expect bad kernels/a.c '"core/internal.h"'
    expect bad kernels/kernels.h '"kernels/internal.h"'
    : >"$tmp/kernels/kernels.h"
    expect good kernels/a.c '<cblas.h>'
    expect bad privacy/a.c '<cblas.h>'
    expect bad privacy/a.c '"transport/transport.h"'
    expect bad transport/a.c '"kernels/kernels.h"'
    expect good transport/a.c '<nng/nng.h>'
    expect bad dist/a.c '<nng/nng.h>'
    expect bad server/a.c '<mbedtls/ssl.h>'
    expect good dist/a.c '"transport/transport.h"'
    expect bad dist/a.c '"transport/internal.h"'
    expect bad dist/a.c '"fed/fed.h"'
    expect bad fed/a.c '"transport/transport.h"'
    expect bad fed/a.c '"dist/dist.h"'
    expect bad fed/a.c '"fed/net/net.h"'
    expect good fed/net/a.c '"transport/transport.h"'
    expect good fed/net/a.c '"fed/fed.h"'
    expect bad fed/net/a.c '"fed/internal.h"'
    expect bad fed/net/a.c '"server/server.h"'
    expect good server/a.c '"fed/net/net.h"'
    expect bad server/a.c '"kernels/internal.h"'
    expect bad server/a.c '<Python.h>'
    expect good python/a.c '<Python.h>'
    expect good tests/unit/a.c '"kernels/internal.h"'
    expect bad tests/unit/a.c '"internal.h"'
}

if [ "${1-}" = --self-test ]; then
    self_test
    exit 0
fi
if check "${1-.}"; then
    echo "check-includes: ok"
else
    echo "check-includes: failed; the table is in scripts/check-includes.sh" >&2
    exit 1
fi
