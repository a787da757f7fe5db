"""Prints the golden table of tests/unit/test_kernels.c: torch's results for the 8- and 16-bit floats.

One row per dtype: FNV-1a (64 bits) over the codes of a + b and of a * b, computed in float32 and rounded once by torch,
for 65,536 pairs: all pairs of codes for 8 bits; for 16 bits, code i with code (40503 i + 12345) mod 65536. NaN counts as
the one code that our kernels give.

    .venv/bin/python tests/golden/kernels.py
"""

import torch

NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7F, "float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80}


def pairs(dtype):
    i = torch.arange(65536, dtype=torch.int64)
    if dtype.itemsize == 1:
        a, b, code = i % 256, i // 256, torch.uint8
    else:
        a, b, code = i, (40503 * i + 12345) % 65536, torch.uint16
    return a.to(code).view(dtype), b.to(code).view(dtype), code


def fnv(values):
    h = 0xCBF29CE484222325
    for v in values:
        h = ((h ^ v) * 0x100000001B3) % 2**64
    return h


for name, nan in NAN.items():
    dtype = getattr(torch, name)
    a, b, code = pairs(dtype)
    row = []
    for op in (torch.add, torch.mul):
        y = op(a.float(), b.float()).to(dtype)
        codes = y.view(code).to(torch.int64)
        codes[torch.isnan(y.float())] = nan
        row.append(f"0x{fnv(codes.tolist()):016x}")
    print(f"    {{{name}, {', '.join(row)}}},")
