"""What else torch.distributed asks of a backend, at world sizes 1, 2 and 4: forms of the operations, Works and Futures, refusals, groups. Every
verb with every dtype and op is in test_grid.py.
"""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from reference import expected, same, values
from torch.distributed import ReduceOp

# ---- on the ranks ----


def premul_sum(rank, size):
    for factor in (0.5, torch.tensor([2.0])):
        inputs = [values(r, [9], torch.float32) for r in range(size)]
        mine = inputs[rank].clone()
        dist.all_reduce(mine, dist._make_nccl_premul_sum(factor))
        same(mine, torch.stack(inputs).sum(0) * float(factor), "premul_sum")


def sparse(rank, size):
    def entries(r):  # duplicates within a rank, overlaps between ranks, and a rank without any
        index = torch.tensor([[r, r, 0], [0, 0, 1]])[:, : 0 if r == 1 else 3]
        return torch.sparse_coo_tensor(index, torch.arange(3.0)[: index.shape[1]] + r + 1, (5, 2))

    mine = entries(rank)
    work = dist.all_reduce(mine, async_op=True)
    want = sum(entries(r).to_dense() for r in range(size))
    assert torch.equal(work.get_future().wait()[0].to_dense(), want)
    assert torch.equal(mine.to_dense(), want)
    with pytest.raises(ValueError, match="MAX"):
        dist.all_reduce(entries(rank), ReduceOp.MAX)


def empty_then_full(rank, size):
    for call in (dist.all_reduce, lambda t: dist.broadcast(t, 0), lambda t: dist.all_gather([torch.empty(1, 0, 2) for _ in range(size)], t)):
        nothing = torch.empty(1, 0, 2)
        call(nothing)
        assert nothing.shape == (1, 0, 2)
    full = torch.ones(2)
    dist.all_reduce(full)
    same(full, torch.full((2,), float(size)), "all_reduce after empty ones")


def average_as_published(rank, size):
    """pytorch 162338."""
    mine = torch.tensor([2.0, 4.0, 6.0, 8.0]) + rank * torch.tensor([2.0, 4.0, 4.0, 4.0])
    dist.all_reduce(mine, ReduceOp.AVG)
    same(mine, torch.tensor([2.0, 4.0, 6.0, 8.0]) + (size - 1) / 2 * torch.tensor([2.0, 4.0, 4.0, 4.0]), "AVG")


def point_to_point(rank, size):
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    for tag in (0, 7):
        out = torch.empty(1001, dtype=torch.bfloat16)
        work = dist.isend(values(rank, [1001], torch.bfloat16), right, tag=tag)
        dist.irecv(out, left, tag=tag).wait()
        work.wait()
        same(out, values(left, [1001], torch.bfloat16), f"irecv with tag {tag}")
    # Two tags, received in the other order.
    first, second = torch.empty(3), torch.empty(3)
    works = [dist.isend(torch.full((3,), float(tag)), right, tag=tag) for tag in (1, 2)]
    dist.irecv(second, left, tag=2).wait()
    dist.irecv(first, left, tag=1).wait()
    [work.wait() for work in works]
    assert first[0] == 1 and second[0] == 2
    out = torch.empty(5)
    ops = [dist.P2POp(dist.isend, values(rank, [5], torch.float32), right), dist.P2POp(dist.irecv, out, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(out, values(left, [5], torch.float32), "batch_isend_irecv")
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            source = dist.recv(out)
            same(out, values(source, [5], torch.float32), "recv from any")
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(values(rank, [5], torch.float32), 0)


def objects(rank, size):
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank * 1000})
    assert [one["rank"] for one in everything] == list(range(size))
    told = [("from", rank)]
    dist.broadcast_object_list(told, size - 1)
    assert told == [("from", size - 1)]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, 0)
    assert rank or gathered == list(range(size))
    out = [None]
    dist.scatter_object_list(out, list("abcd")[:size] if rank == 0 else None, 0)
    assert out == ["abcd"[rank]]


def coalesced(rank, size):
    tensors = [values(rank, [n], torch.float32) for n in (3, 0, 1000)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, n in zip(tensors, (3, 0, 1000)):
        same(tensor, expected("SUM", [values(r, [n], torch.float32) for r in range(size)], torch.float32), "coalesced all_reduce")
    outs = [torch.empty(size * n) for n in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, n in zip(outs, (2, 3)):
            dist.all_gather_into_tensor(out, values(rank, [n], torch.float32))
    manager.wait()
    for out, n in zip(outs, (2, 3)):
        same(out, torch.cat([values(r, [n], torch.float32) for r in range(size)]), "coalesced all_gather")


def functional(rank, size):
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD
    mine = values(rank, [4 * size, 3], torch.float32)
    every = [values(r, [4 * size, 3], torch.float32) for r in range(size)]
    total = expected("SUM", every, torch.float32)
    same(funcol.all_reduce(mine, "sum", group) + 0, total, "functional all_reduce")
    same(funcol.all_gather_tensor(mine, 0, group) + 0, torch.cat(every), "functional all_gather")
    same(funcol.reduce_scatter_tensor(mine, "sum", 0, group) + 0, total[4 * rank : 4 * rank + 4], "functional reduce_scatter")
    same(funcol.broadcast(mine, 0, group) + 0, every[0], "functional broadcast")
    same(funcol.all_to_all_single(mine, None, None, group) + 0,
         torch.cat([tensor[4 * rank : 4 * rank + 4] for tensor in every]), "functional all_to_all")
    for got, want in zip(funcol.all_reduce_coalesced([mine, mine * 2], "sum", group), (total, total * 2)):
        same(got + 0, want, "functional all_reduce_coalesced")


def works_and_futures(rank, size):
    mine = torch.full((3,), rank + 1.0)
    work = dist.all_reduce(mine, async_op=True)
    work.wait(timedelta(seconds=30))
    assert work.is_completed() and work.is_success() and work.exception() is None and work.result()[0] is mine
    order = []
    works = [dist.all_reduce(torch.ones(2) * k, async_op=True) for k in range(20)]
    futures = [work.get_future().then(lambda future, k=k: order.append((k, future.value()[0][0].item()))) for k, work in enumerate(works)]
    for future in futures:
        future.wait()
    assert sorted(order) == [(k, float(k * size)) for k in range(20)]

    def again(future):  # issues a collective on the thread that completes Futures, and waits for its Future, as PowerSGD does
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    # All of the first three are issued before any of the second: a callback of one that is done already runs at once, on some ranks only.
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    chained = [work.get_future().then(again) for work in works]
    assert [future.wait().item() for future in chained] == [size * size] * 3
    # What C++ callers get: a Future whose value is a list of tensors.
    from torchnative.distributed import _work

    plain = torch.futures.Future()
    typed = _work._typed_future(plain, [mine])
    assert not typed.done()
    plain.set_result([mine])
    assert torch.equal(typed.wait()[0], mine)


def a_receive_that_nobody_answers(rank, size):
    if size == 1:
        return
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank == 0:
        work = group.recv([torch.empty(1)], 1, 99)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            work.wait(timedelta(seconds=0.1))
        with pytest.raises(RuntimeError) as caught:
            work.wait()
        assert isinstance(caught.value, TimeoutError) and "1" in str(caught.value)
        assert 0.3 < time.monotonic() - start < 20
        assert isinstance(work.exception(), TimeoutError) and not work.is_success()
        with pytest.raises(Exception, match="."):
            work.get_future().wait()
    dist.barrier()


def refusals(rank, size):
    """What makes no sense for a dtype is refused by name, on every rank, without hanging the others."""
    for op, dtype in [(ReduceOp.BAND, torch.float32), (ReduceOp.BXOR, torch.bfloat16), (ReduceOp.MAX, torch.complex64),
                      (ReduceOp.PRODUCT, torch.float8_e8m0fnu)]:
        group = dist.new_group()
        with pytest.raises((ValueError, RuntimeError), match=str(op.name)):
            group.allreduce([torch.zeros(3, dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else torch.zeros(3, dtype=dtype)], op).wait()
    group = dist.new_group()
    if rank == 0:  # one rank's mistake is everybody's error
        with pytest.raises((ValueError, RuntimeError), match="BAND"):
            dist.all_reduce(torch.zeros(3), ReduceOp.BAND, group=group)
    else:
        with pytest.raises((ValueError, RuntimeError), match="BAND|rank 0"):
            dist.all_reduce(torch.zeros(3, dtype=torch.int32), ReduceOp.BAND, group=group)
    with pytest.raises(ValueError, match="dense"):
        dist.new_group().broadcast([torch.zeros(2, 2).to_sparse()])
    for tensor, words in [(torch.zeros(2, device="meta"), "meta")]:
        with pytest.raises(ValueError, match=words):
            dist.new_group().allreduce([tensor])


def disagreements(rank, size):
    if size == 1:
        return
    for tensor in (torch.zeros(3 + rank), torch.zeros(3, dtype=torch.float32 if rank else torch.int32)):
        with pytest.raises((ValueError, RuntimeError), match="rank"):
            dist.all_reduce(tensor, group=dist.new_group(timeout=timedelta(seconds=20)))


def subgroups(rank, size):
    groups = [dist.new_group([r]) for r in range(size)]
    alone = torch.tensor([float(rank)])
    dist.all_reduce(alone, group=groups[rank])
    assert alone.item() == rank
    reverse = dist.new_group(list(range(size))[::-1], use_local_synchronization=False)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=reverse)
    assert total.item() == sum(range(size))
    if size == 4:
        halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        half = torch.tensor([float(rank)])
        dist.all_reduce(half, group=halves[rank % 2])
        assert half.item() == 2 + 2 * (rank % 2)
        dist.broadcast(half, 2 + rank % 2, group=halves[rank % 2])
        for group in halves:
            if dist.get_rank(group) >= 0:
                dist.destroy_process_group(group)
    for group in (groups[rank], reverse):
        dist.destroy_process_group(group)
    part = dist.group.WORLD.split_group([0, size - 1] if size > 1 else [0])
    assert (part is None) == (rank not in (0, size - 1))
    if part is not None:
        mine = torch.tensor([rank + 1.0])
        part.allreduce([mine]).wait()
        assert mine.item() == sum({1.0, float(size)})
        part.shutdown()


def barriers(rank, size):
    from torchnative.distributed import monitored_barrier

    dist.barrier()
    dist.barrier(async_op=True).wait()
    monitored_barrier()
    monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    if size > 1:
        dist.barrier()
        if rank == 0:
            with pytest.raises(RuntimeError, match=f"ank.* {size - 1} failed to pass"):
                monitored_barrier(timeout=timedelta(seconds=0.7), wait_all_ranks=True)
        elif rank != size - 1:
            with pytest.raises(RuntimeError, match="received errors while waiting"):
                monitored_barrier(timeout=timedelta(seconds=1.5), wait_all_ranks=True)
        dist.barrier()


def names(rank, size):
    group = dist.group.WORLD
    assert dist.get_backend() == "tn" and group.name() == "tn" and group.rank() == rank and group.size() == size
    assert dist.get_rank() == rank and dist.get_world_size() == size and dist.is_backend_available("tn")
    assert dist.distributed_c10d._get_pg_default_device() == torch.device("cpu")
    before = group._get_sequence_number_for_group()
    dist.barrier()
    assert group._get_sequence_number_for_group() == before + 1
    assert group._get_backend(torch.device("cpu")) is group
    with pytest.raises(RuntimeError, match="cuda"):
        group._get_backend(torch.device("cuda"))


OPERATIONS = [premul_sum, sparse, empty_then_full, average_as_published, point_to_point,
              objects, coalesced, functional, works_and_futures, a_receive_that_nobody_answers, refusals, disagreements, subgroups,
              barriers, names]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda function: function.__name__)
def test_operation(world, operation):
    world.run(operation)
