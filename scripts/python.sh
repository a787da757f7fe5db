# Sourced: find_python prints the interpreter that .venv is made from, the first of PATH and Debian's that is at least
# 3.11 and has venv, ensurepip and the headers; nothing when there is none.
find_python() {
    for p in "$(command -v python3 || true)" /usr/bin/python3; do
        [ -n "$p" ] && "$p" - 2>/dev/null <<'END' && { echo "$p"; return; }
import ensurepip, os, sys, sysconfig, venv
sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))
END
    done
    return 0
}
