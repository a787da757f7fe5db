"""Every verb of torch.distributed, every dtype, every reduce op, 1 to 7 ranks and 0 to a million elements: the value that must come, bit for bit on
every rank, and gloo's where gloo has one. And every layout that a tensor can have.
"""

from datetime import timedelta

import pytest
import reference
import torch
import torch.distributed as dist
from reference import DTYPES, MOVES, OPS, REDUCTIONS, Call, defined, same

SMALL = [0, 1, 3, 1000]
BIG = 1000003  # odd: no segment, no lane and no number of ranks divides it
BY_SIZE = [torch.int8, torch.bfloat16, torch.float32, torch.int64, torch.complex128]  # a move looks at the size of an element only
_gloo = None


def gloo():
    """gloo's group of the same ranks, one for the life of the process."""
    global _gloo
    if _gloo is None:
        _gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    return _gloo


def check(verb, call, what):
    for got, want in verb(call):
        same(got, want, what)


def as_gloo(verb, call, what):
    """gloo's result is the same, where it gives one: what it lacks it refuses on every rank before anything is sent."""
    theirs = Call(gloo(), call.rank, call.size, call.dtype, call.count, call.op, call.root, call.async_op)
    try:
        pairs = verb(theirs)
    except (RuntimeError, ValueError):
        return False
    for got, want in pairs:
        if call.dtype == torch.bool:
            got = got.view(torch.uint8) != 0  # gloo's sum of bools leaves numbers above 1
        if call.op == "AVG":
            torch.testing.assert_close(got, want)  # gloo multiplies by a rounded reciprocal, which is one rounding more
        else:
            same(got, want, f"{what} of gloo")
    return True


def combinations(verbs, verb):
    return [(dtype, op) for dtype in DTYPES for op in (OPS if verb in REDUCTIONS else ["SUM"]) if verb in MOVES or defined(verb, op, dtype)]


def small(rank, size, verb):
    shared = 0
    for number, (dtype, op) in enumerate(combinations(REDUCTIONS, verb)):
        for count in SMALL:
            call = Call(dist.group.WORLD, rank, size, dtype, count, op, root=(number + count) % size, async_op=number % 2 == 1)
            what = f"{verb.__name__} {op} {dtype} of {count}"
            check(verb, call, what)
            if count in (3, 1000) and size > 1:
                shared += as_gloo(verb, call, what)
    return shared


@pytest.mark.timeout(240)
@pytest.mark.parametrize("verb", REDUCTIONS + MOVES, ids=lambda verb: verb.__name__)
def test_small(any_world, verb):
    shared = any_world.run(small, verb, seconds=120)
    assert len(set(shared)) == 1, f"gloo served different calls on different ranks: {shared}"
    if any_world.size > 1 and verb is not reference.all_gather_uneven and verb is not reference.reduce_scatter:
        assert shared[0] >= 18, "gloo has these operations; a comparison that hardly ever happens is none"


def big(rank, size, verb):
    if verb in MOVES:
        chosen = [(dtype, "SUM") for dtype in BY_SIZE]
    else:  # a third of the dtypes in each world, each with one op, so that three worlds have them all
        chosen = []
        for number, dtype in list(enumerate(DTYPES))[size % 3 :: 3]:
            ops = [op for op in OPS if defined(verb, op, dtype)]
            chosen.append((dtype, ops[(number + size) % len(ops)]))
    for number, (dtype, op) in enumerate(chosen):
        call = Call(dist.group.WORLD, rank, size, dtype, BIG, op, root=number % size)
        check(verb, call, f"{verb.__name__} {op} {dtype} of {BIG}")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("verb", REDUCTIONS + MOVES, ids=lambda verb: verb.__name__)
def test_big(any_world, verb):
    any_world.run(big, verb, seconds=120)
