"""What every operation of torch.distributed must give: each verb as a function that runs it on a group and returns what came next to what must come.

Values are computed from all ranks' inputs. Inputs differ by rank and by element (tests filled with one constant hide stride faults), and are small
enough for every dtype to hold them and their reductions exactly, so that any correct backend ends with the same bits.
"""

import functools

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
E8M0 = torch.float8_e8m0fnu  # powers of two, no zero and no sign
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS = UNSIGNED + [torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *FLOAT8, E8M0]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
PERIOD = 1009  # after which values repeat: a prime, so that no part of a message that lands in another's place goes unseen
FACTOR = 0.5  # of PREMUL_SUM: a power of two, which keeps sums exact


def defined(verb, op, dtype):
    """Whether torch.distributed has a meaning for op on dtype in that verb."""
    if dtype == E8M0:
        return op in ("MIN", "MAX")
    if op in ("BAND", "BOR", "BXOR"):
        return dtype == torch.bool or dtype in INTEGERS
    if op == "PREMUL_SUM":
        return dtype.is_floating_point or dtype.is_complex
    if dtype.is_complex:
        # Two verbs hand complex tensors on as pairs of real numbers, and so refuse the product before a backend sees it.
        return op in ("SUM", "AVG") or op == "PRODUCT" and verb not in (all_reduce, all_reduce_coalesced)
    return op != "AVG" or dtype != torch.bool


def reduce_op(op):
    return dist._make_nccl_premul_sum(FACTOR) if op == "PREMUL_SUM" else getattr(ReduceOp, op)


@functools.lru_cache(512)
def _table(rank, dtype, op):
    """One period of a rank's values."""
    base = torch.randint(7, [PERIOD], generator=torch.Generator().manual_seed(rank))
    if dtype == torch.bool:
        return base % 2 == rank % 2
    if dtype == E8M0:
        return (2.0 ** (base % 4)).to(dtype)
    if dtype.is_complex:
        return torch.complex((base - 3).double(), (base.roll(1) - 2).double()).to(dtype)
    if op == "PRODUCT":
        base = base % 2 + 1
        if dtype not in UNSIGNED:
            base[::3] *= -1
    elif dtype not in UNSIGNED:
        base = base - 3
    return base.to(dtype)


def _tiled(table, count, start=0):
    """`count` elements of a row that repeats `table`, from place `start` on."""
    plain = table.view(torch.uint8) if table.itemsize == 1 else table
    start %= PERIOD
    return plain.repeat((start + count) // PERIOD + 1)[start : start + count].clone().view(table.dtype)


def values(rank, shape, dtype, op="SUM", start=0):
    return _tiled(_table(rank, dtype, op), torch.Size(shape).numel(), start).view(shape)


def _wide(tensor):
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    if tensor.dtype.is_floating_point:
        return tensor.to(torch.float32).to(torch.float64)  # float8 converts to float32 only
    return tensor.to(torch.int64)


def expected(op, inputs, dtype):
    """The reduction of such values in a wide dtype, rounded once. Of a long row one period is computed."""
    if inputs[0].dim() == 1 and inputs[0].numel() > PERIOD:
        return _tiled(expected(op, [tensor[:PERIOD] for tensor in inputs], dtype), inputs[0].numel())
    stack = torch.stack([_wide(tensor) for tensor in inputs])
    if op in ("SUM", "PREMUL_SUM"):
        out = stack.sum(0) * (FACTOR if op == "PREMUL_SUM" else 1)
    elif op == "AVG":
        out = stack.sum(0)
        if dtype.is_complex:
            out = torch.view_as_complex(torch.view_as_real(out) / len(inputs))
        else:
            out = out / len(inputs) if dtype.is_floating_point else out.div(len(inputs), rounding_mode="trunc")
    elif op == "PRODUCT" and dtype.is_complex:  # step by step, for the signs of zeros
        out = stack[0]
        for row in stack[1:]:
            out = torch.complex(out.real * row.real - out.imag * row.imag, out.real * row.imag + out.imag * row.real)
    elif op == "PRODUCT":
        out = stack.prod(0)
    elif op == "MIN":
        out = stack.amin(0)
    elif op == "MAX":
        out = stack.amax(0)
    else:
        out = stack[0]
        for row in stack[1:]:
            out = {"BAND": out & row, "BOR": out | row, "BXOR": out ^ row}[op]
    if dtype == torch.bool:
        return out != 0
    return out.float().to(dtype) if dtype.is_floating_point and dtype.itemsize < 4 else out.to(dtype)


def bits(tensor):
    """Its bytes in row-major order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(got, want, what):
    assert got.dtype == want.dtype and got.shape == want.shape, f"{what}: {got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
    assert torch.equal(bits(got), bits(want)), f"{what}: {got.flatten()[:8]} instead of {want.flatten()[:8]}"


class Call:
    """One call of one verb: where, on what, and how much."""

    def __init__(self, group, rank, size, dtype, count, op="SUM", root=0, async_op=False):
        self.group, self.rank, self.size, self.dtype, self.count, self.op = group, rank, size, dtype, count, op
        self.root, self.async_op = root, async_op

    def inputs(self, count=None):
        return [values(rank, [self.count if count is None else count], self.dtype, self.op) for rank in range(self.size)]

    def blank(self, count=None):
        return torch.zeros(self.count if count is None else count, dtype=torch.uint8 if self.dtype.itemsize == 1 else self.dtype).view(self.dtype)

    def reduced(self, inputs):
        return expected(self.op, inputs, self.dtype)

    def run(self, verb, *arguments):
        work = verb(*arguments, group=self.group, async_op=self.async_op)
        if self.async_op and work is not None:
            work.wait()


# ---- reductions: each gives a list of (what came, what must come) on this rank ----


def all_reduce(call):
    inputs = call.inputs()
    mine = inputs[call.rank].clone()
    call.run(dist.all_reduce, mine, reduce_op(call.op))
    return [(mine, call.reduced(inputs))]


def all_reduce_coalesced(call):
    inputs = [call.inputs(), call.inputs(call.count + 2)]
    mine = [tensors[call.rank].clone() for tensors in inputs]
    call.run(dist.all_reduce_coalesced, mine, reduce_op(call.op))
    return list(zip(mine, map(call.reduced, inputs)))


def reduce(call):
    inputs = call.inputs()
    mine = inputs[call.rank].clone()
    call.run(dist.reduce, mine, call.root, reduce_op(call.op))
    return [(mine, call.reduced(inputs))] if call.rank == call.root else []


def _reduce_scatter(call, sizes):
    def part(rank, to):
        return values(rank + 10 * to, [sizes[to]], call.dtype, call.op)

    out = call.blank(sizes[call.rank])
    call.run(dist.reduce_scatter, out, [part(call.rank, to) for to in range(call.size)], reduce_op(call.op))
    return [(out, call.reduced([part(rank, call.rank) for rank in range(call.size)]))]


def reduce_scatter(call):
    sizes = [call.count + part for part in range(call.size)]
    return _reduce_scatter(call, sizes)


def reduce_scatter_equal(call):
    return _reduce_scatter(call, [call.count] * call.size)


def reduce_scatter_tensor(call):
    out = call.blank()
    call.run(dist.reduce_scatter_tensor, out, values(call.rank, [call.size * call.count], call.dtype, call.op), reduce_op(call.op))
    return [(out, call.reduced([values(rank, [call.count], call.dtype, call.op, call.rank * call.count) for rank in range(call.size)]))]


# ---- moves ----


def broadcast(call):
    inputs = call.inputs()
    mine = inputs[call.rank].clone()
    call.run(dist.broadcast, mine, call.root)
    return [(mine, inputs[call.root])]


def all_gather(call):
    inputs = call.inputs()
    outs = [call.blank() for _ in inputs]
    call.run(dist.all_gather, outs, inputs[call.rank])
    return list(zip(outs, inputs))


def all_gather_uneven(call):
    inputs = [values(rank, [call.count + rank], call.dtype) for rank in range(call.size)]
    outs = [call.blank(tensor.numel()) for tensor in inputs]
    call.run(dist.all_gather, outs, inputs[call.rank])
    return list(zip(outs, inputs))


def all_gather_into_tensor(call):
    inputs = call.inputs()
    out = call.blank(call.size * call.count)
    call.run(dist.all_gather_into_tensor, out, inputs[call.rank])
    return [(out, torch.cat([bits(tensor) for tensor in inputs]).view(call.dtype))]


def gather(call):
    inputs = call.inputs()
    outs = [call.blank() for _ in inputs] if call.rank == call.root else None
    call.run(dist.gather, inputs[call.rank], outs, call.root)
    return list(zip(outs, inputs)) if outs is not None else []


def scatter(call):
    inputs = call.inputs()
    out = call.blank()
    call.run(dist.scatter, out, inputs if call.rank == call.root else None, call.root)
    return [(out, inputs[call.rank])]


def all_to_all(call):
    sent = [values(10 * call.rank + to, [call.count], call.dtype) for to in range(call.size)]
    outs = [call.blank() for _ in sent]
    call.run(dist.all_to_all, outs, sent)
    return list(zip(outs, [values(10 * source + call.rank, [call.count], call.dtype) for source in range(call.size)]))


def all_to_all_single(call):
    """Rank r sends count + r + s elements to rank s."""
    counts = [call.count + call.rank + other for other in range(call.size)]
    sent = torch.cat([bits(values(10 * call.rank + to, [n], call.dtype)) for to, n in enumerate(counts)]).view(call.dtype)
    out = call.blank(sum(counts))
    call.run(dist.all_to_all_single, out, sent, counts, counts)
    return list(zip(out.split(counts), [values(10 * source + call.rank, [n], call.dtype) for source, n in enumerate(counts)]))


def send_recv(call):
    """Everybody to the next rank, with a tag."""
    if call.size == 1:
        return []
    inputs, out = call.inputs(), call.blank()
    right, left = ((call.rank + step) % call.size for step in (1, -1))
    ranks = dist.get_process_group_ranks(call.group)
    works = [dist.isend(inputs[call.rank], ranks[right], call.group, tag=call.count), dist.irecv(out, ranks[left], call.group, tag=call.count)]
    for work in works:
        work.wait()
    return [(out, inputs[left])]


REDUCTIONS = [all_reduce, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_equal, reduce_scatter_tensor]
MOVES = [broadcast, all_gather, all_gather_uneven, all_gather_into_tensor, gather, scatter, all_to_all, all_to_all_single, send_recv]
