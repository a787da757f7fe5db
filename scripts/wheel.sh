#!/bin/sh
# wheel.sh PYTHON BUILD ARCH: one wheel for every CPython from 3.11 on. setuptools sees no extension module here (make
# has built it), so the wheel is tagged afterwards. Built from a copy, which keeps the tree clean.
set -eu
python=$1 build=$2 arch=$3
rm -rf "$build/wheel"
mkdir -p "$build/wheel/src"
cp -r python/pyproject.toml python/torchnative "$build/wheel/src"
cp LICENSE "$build/wheel/src"
[ ! -f python/README.md ] || cp python/README.md "$build/wheel/src"
find "$build/wheel/src" -name __pycache__ -prune -exec rm -rf {} +
"$python" -m pip --disable-pip-version-check -qq wheel --no-build-isolation --no-deps -w "$build/wheel" "$build/wheel/src"
rm -rf "$build/wheel/src"
case $(echo "$build"/wheel/*.whl) in
*-py3-none-any.whl)
    "$python" -m wheel tags --remove --python-tag cp311 --abi-tag abi3 --platform-tag "linux_$arch" \
        "$build"/wheel/*.whl >/dev/null
    ;;
esac
"$python" - "$build"/wheel/*.whl <<'END'
import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
if "torchnative/_tn.abi3.so" not in names or "-cp311-abi3-" not in sys.argv[1]:
    sys.exit(f"wheel: {sys.argv[1]} lacks torchnative/_tn.abi3.so or the abi3 tag")
END
ls "$build"/wheel/*.whl
