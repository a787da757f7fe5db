"""Every verb of torch.distributed, every dtype, every reduce op, 1 to 7 ranks and 0 to a million elements: the value that must come, bit for bit on
every rank, and gloo's where gloo has one. Numbers that must be rounded, and combinations that make no sense.
"""

import hashlib
import time
from datetime import timedelta

import collectives_table
import pytest
import reference
import torch
import torch.distributed as dist
from reference import COMPLEX, DTYPES, FLOAT8, FLOATS, INTEGERS, MOVES, OPS, REDUCTIONS, Call, bits, defined, same, values

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


def test_the_comparison_finds_what_is_wrong():
    for dtype in DTYPES:
        row = values(0, [50000], dtype)
        same(row.clone(), row, "")
        flipped = row.clone()
        bits(flipped)[-1] ^= 1
        for wrong in (flipped, row.roll(16384) if dtype.itemsize > 1 else bits(row).roll(16384).view(dtype), row[:-1], row.view(2, -1),
                      values(1, [50000], dtype)):
            with pytest.raises(AssertionError):
                same(wrong, row, "")
    zero = torch.zeros(3)
    with pytest.raises(AssertionError):
        same(-zero, zero, "")
    with pytest.raises(AssertionError):
        same(zero.int(), zero, "")


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


def in_rank_order(op, inputs, dtype):
    """The ranks' numbers one after the other in the accumulator of the dtype, rounded once: what kernels.h promises."""
    wide = torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
    out = None
    for tensor in inputs:
        tensor = tensor.to(wide)
        out = tensor if out is None else out * tensor if op == "PRODUCT" else out + tensor
    if op == "AVG":  # torch divides complex numbers by a rounded reciprocal
        out = torch.view_as_complex(torch.view_as_real(out) / len(inputs)) if dtype.is_complex else out / len(inputs)
    return out.to(dtype)


def noise(rank, count, dtype):
    generator = torch.Generator().manual_seed(17 + rank)
    parts = [torch.randn(count, generator=generator, dtype=torch.float64) for _ in range(2)]
    return torch.complex(*parts).to(dtype) if dtype.is_complex else parts[0].float().to(dtype) if dtype.itemsize < 4 else parts[0].to(dtype)


def rounding(rank, size):
    """Returns a digest of all results: parameters that are equal everywhere stay so."""
    digest = hashlib.sha256()
    for dtype in FLOATS + COMPLEX + FLOAT8:
        for op in ["SUM", "AVG"] + ([] if dtype.is_complex else ["PRODUCT"]):
            for count in (5, 1000, 70001):
                inputs = [noise(r, count, dtype) for r in range(size)]
                want = in_rank_order(op, inputs, dtype)
                mine = inputs[rank].clone()
                dist.all_reduce(mine, reference.reduce_op(op))
                same(mine, want, f"all_reduce {op} {dtype} of {count}")
                digest.update(bits(mine).numpy().tobytes())
                mine = inputs[rank].clone()
                dist.reduce(mine, size - 1, reference.reduce_op(op))
                if rank == size - 1:
                    same(mine, want, f"reduce {op} {dtype} of {count}")
    return digest.hexdigest()


@pytest.mark.timeout(120)
def test_reductions_round_once_and_alike(any_world):
    digests = any_world.run(rounding)
    assert len(set(digests)) == 1


def nonsense(rank, size, verb):
    """What makes no sense for a dtype is refused by name, on every rank, and the group goes on."""
    refused = [(dtype, op) for dtype in DTYPES for op in OPS if not defined(verb, op, dtype)]
    for dtype, op in refused:
        with pytest.raises((ValueError, RuntimeError), match=op) as caught:
            verb(Call(dist.group.WORLD, rank, size, dtype, 3, op))
        assert str(dtype).removeprefix("torch.") in str(caught.value) or dtype.is_complex and "complex" in str(caught.value), caught.value
        if dtype in FLOATS + INTEGERS[:1]:
            check(verb, Call(dist.group.WORLD, rank, size, dtype, 3), f"{verb.__name__} {dtype} after a refusal")
    return len(refused)


@pytest.mark.parametrize("verb", REDUCTIONS, ids=lambda verb: verb.__name__)
def test_nonsense_is_refused_by_name(any_world, verb):
    assert all(count > 40 for count in any_world.run(nonsense, verb))


def one_rank_errs(rank, size):
    """One rank's mistake is everybody's error at once, whoever makes it and whatever it is."""
    start = time.monotonic()
    mistakes = [
        lambda group: dist.all_reduce(torch.zeros(3), dist.ReduceOp.BAND, group=group),
        lambda group: group.allreduce([torch.zeros(3, device="meta")]),
        lambda group: group.allreduce([torch.zeros(3, dtype=torch.complex64).conj()]),
        lambda group: group.all_gather_single(torch.zeros(size * 3 + 1), torch.zeros(3)),
        lambda group: group.broadcast([torch.zeros(3).to_sparse()]),
        lambda group: group.allreduce(["three numbers"]),
    ]
    for number, mistake in enumerate(mistakes):
        group = dist.new_group()
        if rank == number % size:
            with pytest.raises((ValueError, RuntimeError, TypeError), match="."):
                mistake(group)
        else:
            with pytest.raises((ValueError, RuntimeError), match=f"rank {number % size} "):
                dist.all_reduce(values(rank, [3], torch.float32), group=group)
        dist.barrier()
    assert time.monotonic() - start < 45


def test_one_rank_errs(any_world):
    if any_world.size > 1:
        any_world.run(one_rank_errs)


@pytest.mark.timeout(180)
def test_the_table_in_the_docs_is_what_is_measured(world3):
    assert collectives_table.measure(world3) == collectives_table.PAGE.read_text()
