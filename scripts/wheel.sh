#!/bin/sh
# wheel.sh PYTHON BUILD: one wheel for every CPython from 3.11 on, in BUILD/wheel. Made from a copy, which keeps the tree
# clean, and whose setup.py tells setuptools of the module that make has built.
set -eu
python=$1 build=$2
src=$build/wheel/src
rm -rf "$build/wheel"
mkdir -p "$src"
cp -r python/pyproject.toml python/torchnative LICENSE "$src"
[ ! -f python/README.md ] || cp python/README.md "$src"
find "$src" -name __pycache__ -prune -exec rm -rf {} +
cat >"$src/setup.py" <<'END'
from setuptools import Distribution, setup


class Prebuilt(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=Prebuilt, options={"bdist_wheel": {"py_limited_api": "cp311"}})
END
"$python" -m pip --disable-pip-version-check -qq wheel --no-build-isolation --no-deps -w "$build/wheel" "$src"
rm -rf "$src"
"$python" - "$build"/wheel/*.whl <<'END'
import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
if "torchnative/_tn.abi3.so" not in names or "-cp311-abi3-" not in sys.argv[1]:
    sys.exit(f"wheel: {sys.argv[1]} lacks torchnative/_tn.abi3.so or the abi3 tag")
END
ls "$build"/wheel/*.whl
