"""Every layout that a tensor can have: the values of a contiguous copy, and the memory around the view untouched. And tensors above 2 GiB."""

import pytest
import reference
import torch
import torch.distributed as dist
from reference import same, values

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool, torch.float8_e5m2]

LAYOUTS = {
    "plain": lambda r, d: values(r, [3, 4], d),
    "column": lambda r, d: values(r, [6, 2], d)[:, 1],
    "transposed": lambda r, d: values(r, [3, 4], d).t(),
    "permuted": lambda r, d: values(r, [2, 3, 4], d).permute(2, 0, 1),
    "channels last": lambda r, d: values(r, [2, 3, 4, 5], d).to(memory_format=torch.channels_last),
    "channels last 3d": lambda r, d: values(r, [2, 3, 2, 4, 2], d).to(memory_format=torch.channels_last_3d),
    "every third": lambda r, d: values(r, [40], d)[5:33:3],
    "middle": lambda r, d: values(r, [40], d)[7:20],
    "part of each row": lambda r, d: values(r, [3, 6], d)[:, 1:4],
    "diagonal": lambda r, d: values(r, [5, 5], d).diagonal(),
    "no dimension": lambda r, d: values(r, [], d),
    "one of many": lambda r, d: values(r, [7], d)[3],
    "nothing": lambda r, d: values(r, [0], d),
    "nothing in three dimensions": lambda r, d: values(r, [1, 0, 2], d),
    "nothing, transposed": lambda r, d: values(r, [4, 0], d).t(),
    "24 dimensions": lambda r, d: values(r, [2, 3, 1, 2] + [1] * 20, d),
    "24 dimensions, permuted": lambda r, d: values(r, [2, 3, 1, 2] + [1] * 20, d).permute(*range(23, -1, -1)),
    "expanded rows": lambda r, d: values(r, [4], d).expand(3, 4),
    "expanded columns": lambda r, d: values(r, [3, 1], d).expand(3, 4),
    "one number expanded": lambda r, d: values(r, [], d).expand(5),
}


def storage(tensor):
    """All of the memory behind it, as one row."""
    whole = torch.empty(0, dtype=tensor.dtype)
    whole.set_(tensor.untyped_storage(), 0, (tensor.untyped_storage().nbytes() // tensor.itemsize,))
    return whole


class Watched:
    """A view whose storage must end as it was, but for what is written through the view."""

    def __init__(self, tensor):
        self.tensor, self.before = tensor, storage(tensor).clone()

    def ends_as(self, want, what):
        same(self.tensor.contiguous(), want.contiguous(), what)
        inside = self.before.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset())
        if 0 in self.tensor.stride():  # each place once: the elements that share one are equal here
            inside, want = (one[tuple(slice(0, 1) if step == 0 else slice(None) for step in self.tensor.stride())] for one in (inside, want))
        inside.copy_(want)
        same(storage(self.tensor), self.before, f"{what}: the storage")


def in_place(rank, size, make, name, dtype):
    inputs = [make(r, dtype).contiguous() for r in range(size)]
    for verb, call, want in (
        ("all_reduce", lambda tensor: dist.all_reduce(tensor), reference.expected("SUM", inputs, dtype)),
        ("broadcast", lambda tensor: dist.broadcast(tensor, size - 1), inputs[-1]),
        ("reduce", lambda tensor: dist.reduce(tensor, 0), reference.expected("SUM", inputs, dtype) if rank == 0 else inputs[rank]),
        ("all_reduce_coalesced", lambda tensor: dist.all_reduce_coalesced([tensor]), reference.expected("SUM", inputs, dtype)),
    ):
        mine = Watched(make(rank, dtype))
        call(mine.tensor)
        mine.ends_as(want, f"{verb}, {name}, {dtype}")


def into_outputs(rank, size, make, name, dtype):
    inputs = [make(r, dtype) for r in range(size)]
    plain = [tensor.contiguous() for tensor in inputs]
    # The same layout for what comes, with other values to begin with.
    outs = [Watched(make(r + 3, dtype)) for r in range(size)]
    out = outs[rank]
    what = f"{name}, {dtype}"
    before = [storage(tensor).clone() for tensor in inputs]
    dist.all_gather([one.tensor for one in outs], inputs[rank])
    for r in range(size):
        outs[r].ends_as(plain[r], f"all_gather, {what}")
    dist.gather(inputs[rank], [one.tensor for one in outs] if rank == 0 else None, 0)
    dist.scatter(out.tensor, inputs if rank == size - 1 else None, size - 1)
    out.ends_as(plain[rank], f"scatter, {what}")
    dist.all_to_all([one.tensor for one in outs], inputs)
    for r in range(size):
        outs[r].ends_as(plain[rank], f"all_to_all, {what}")
    dist.reduce_scatter(out.tensor, inputs)
    out.ends_as(reference.expected("SUM", [plain[rank]] * size, dtype), f"reduce_scatter, {what}")
    if size > 1:
        works = [dist.isend(inputs[rank], (rank + 1) % size), dist.irecv(out.tensor, (rank - 1) % size)]
        for work in works:
            work.wait()
        out.ends_as(plain[rank - 1], f"send and recv, {what}")
    for tensor, was in zip(inputs, before):
        same(storage(tensor), was, f"an input, {what}")


def layouts(rank, size, kind, dtype):
    for name, make in LAYOUTS.items():
        kind(rank, size, make, name, dtype)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [in_place, into_outputs], ids=lambda kind: kind.__name__)
def test_layouts(any_world, kind, dtype):
    any_world.run(layouts, kind, dtype)


def whole_tensors(rank, size):
    """The verbs that cut one tensor by rank, on views: rows of a wider matrix, and a transposed one."""
    for make in (lambda r, rows: values(r, [rows, 6], torch.float32)[:, 1:4], lambda r, rows: values(r, [3, rows], torch.float32).t()):
        inputs = [make(r, 2 * size) for r in range(size)]
        rows = slice(2 * rank, 2 * rank + 2)
        out = Watched(make(9, 2))
        dist.reduce_scatter_tensor(out.tensor, inputs[rank])
        total = reference.expected("SUM", [tensor.contiguous() for tensor in inputs], torch.float32)
        out.ends_as(total[rows], "reduce_scatter_tensor")
        whole = Watched(make(9, 2 * size))
        dist.all_gather_into_tensor(whole.tensor, make(rank, 2))
        whole.ends_as(torch.cat([make(r, 2) for r in range(size)]), "all_gather_into_tensor")
        whole = Watched(make(9, 2 * size))
        dist.all_to_all_single(whole.tensor, inputs[rank])
        whole.ends_as(torch.cat([tensor[rows] for tensor in inputs]), "all_to_all_single")


def test_tensors_that_are_cut(any_world):
    any_world.run(whole_tensors)


def lazy(rank, size):
    """Views that say another value than their memory holds are refused by every verb that a backend sees, with the remedy."""
    group = dist.group.WORLD
    conjugated = values(rank, [3], torch.complex64).conj()
    negated = values(rank, [3], torch.complex64).conj().imag
    assert conjugated.is_conj() and negated.is_neg()
    for tensor, remedy in ((conjugated, "resolve_conj"), (negated, "resolve_neg")):
        for call in (lambda t: group.allreduce([t]), lambda t: group.broadcast([t]), lambda t: group.all_gather_single(torch.zeros(3 * size, dtype=t.dtype), t)):
            with pytest.raises((ValueError, RuntimeError), match=remedy):
                call(tensor)
    dist.barrier()


def test_lazy_views_are_refused(any_world):
    any_world.run(lazy)


def above_2_gib(rank, size):
    count = (1 << 31) + 5
    places = [0, 1, (1 << 31) - 1, 1 << 31, count - 1]

    def made(r):
        tensor = torch.full((count,), r + 1, dtype=torch.uint8)
        for step, place in enumerate(places):
            tensor[place] = 10 * (r + 1) + step
        return tensor

    def check(tensor, body, ends, what):
        assert [tensor[place].item() for place in places] == ends, what
        tensor[places] = body
        assert tensor.min().item() == tensor.max().item() == body, what

    mine = made(rank)
    dist.all_reduce(mine)
    check(mine, 3, [30 + 2 * step for step in range(5)], "all_reduce")
    if rank == 0:
        dist.send(made(0), 1)
    else:
        dist.recv(mine, 0)
        check(mine, 1, [10 + step for step in range(5)], "recv")
    mine = made(rank)
    dist.broadcast(mine, 1)
    check(mine, 2, [20 + step for step in range(5)], "broadcast")


def memory_available():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) << 10


@pytest.mark.timeout(300)
@pytest.mark.skipif(memory_available() < 12 << 30, reason="two ranks with two tensors of 2 GiB each need 12 GiB of free memory")
def test_above_2_gib(world2):
    world2.run(above_2_gib, seconds=240)
