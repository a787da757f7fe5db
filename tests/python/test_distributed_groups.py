"""Groups by the hundred, in any order and on many threads at once; messages with tags; Works as torch's callers use them; ways to begin."""

import multiprocessing
import random
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from reference import same, values
from test_distributed_torch import HERE, torchrun

# ---- groups ----


def by_the_hundred(rank, size):
    pairs = [(first, second) for first in range(size) for second in range(first + 1, size)]
    made = [(ranks, dist.new_group(ranks)) for ranks in pairs * 20]  # 120 of them, many over the same ranks
    mine = [(number, ranks, group) for number, (ranks, group) in enumerate(made) if rank in ranks]
    works, totals = [], []
    for number, ranks, group in mine:
        totals.append((torch.tensor([float(rank + number)]), sum(ranks) + 2.0 * number, group))
        works.append(dist.all_reduce(totals[-1][0], group=group, async_op=True))
    for work in reversed(works):
        work.wait()
    for total, want, _ in totals:
        assert total.item() == want
    for number, _, group in mine:
        if number % 2 == 0:
            dist.destroy_process_group(group)
    again = [(None, ranks, dist.new_group(ranks)) for ranks in pairs]
    for _, ranks, group in [one for one in mine if one[0] % 2 == 1] + [one for one in again if rank in one[1]]:
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=group)
        assert total.item() == sum(ranks)
        dist.destroy_process_group(group)


def some_orders(rank, size):
    torchs, enumerated = dist.new_subgroups(2), dist.new_subgroups_by_enumeration([[2, 0], [3, 1]])
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=torchs[0])
    assert total.item() == 4 * (rank // 2) + 1
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=enumerated[0])
    assert total.item() == 2 + 2 * (rank % 2)
    if rank != 1:  # only its members need to come
        group = dist.new_group([3, 0, 2], use_local_synchronization=True)
        gathered = [torch.zeros(1) for _ in range(3)]
        dist.all_gather(gathered, torch.tensor([float(rank)]), group=group)
        assert [one.item() for one in gathered] == [0, 2, 3]
        told = torch.tensor([float(rank)])
        dist.broadcast(told, group_src=1, group=group)
        assert told.item() == dist.get_global_rank(group, 1) == 2
        things = [None] * 3
        dist.all_gather_object(things, str(rank), group=group)
        assert things == ["0", "2", "3"]
        dist.barrier(group)
    order = [2, 0, 3, 1]
    split = dist.group.WORLD.split_group(order)
    gathered = [torch.zeros(1) for _ in order]
    split.allgather([gathered], [torch.tensor([float(rank)])]).wait()
    assert [one.item() for one in gathered] == order and split.rank() == order.index(rank)
    inner = split.split_group([3, 1])
    if rank in (0, 1):
        total = torch.tensor([rank + 1.0])
        inner.allreduce([total]).wait()
        assert total.item() == 3
        inner.shutdown()
    split.shutdown()


def merged(rank, size):
    """Two groups that know nothing of each other become one, each in its order."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    store = dist.PrefixStore("to merge", dist.distributed_c10d._get_default_store())
    group = halves[rank // 2].merge_remote_group(store, size, timedelta(seconds=60), "both", "of two halves")
    gathered = [torch.zeros(1) for _ in range(size)]
    group.allgather([gathered], [torch.tensor([float(rank)])]).wait()
    assert [one.item() for one in gathered] in ([0, 1, 2, 3], [2, 3, 0, 1])
    assert group.size() == size and group.group_name == "both" and group.group_desc == "of two halves"
    group.shutdown()
    with pytest.raises(ValueError, match="4 ranks or more, not 3"):
        dist.group.WORLD.merge_remote_group(store, 3, group_name="too many")
    dist.barrier()


def many_threads(rank, size):
    """Eight groups, each on a thread of its own, at the same time: the ranks' threads run in any order."""
    groups = [dist.new_group() for _ in range(8)]
    failures = []

    def run(number, group):
        try:
            for step in range(40):
                count = [1, 1000, 70000][(number + step) % 3]
                tensor = torch.full((count,), float(rank + number + step))
                dist.all_reduce(tensor, group=group)
                want = sum(range(size)) + size * (number + step)
                assert tensor[0].item() == want and bool((tensor == want).all()), f"group {number}, step {step}"
                if step % 8 == number:
                    dist.barrier(group)
                out = torch.zeros(3)
                works = [dist.isend(torch.full((3,), float(step)), (rank + 1) % size, group, tag=number),
                         dist.irecv(out, (rank - 1) % size, group, tag=number)]
                for work in works:
                    work.wait()
                assert out[0].item() == step
        except BaseException as error:  # noqa: BLE001: reported below
            failures.append(error)

    threads = [threading.Thread(target=run, args=one) for one in enumerate(groups)]
    random.Random(rank).shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures and not any(thread.is_alive() for thread in threads), failures
    for group in groups:
        dist.destroy_process_group(group)


# ---- messages ----


def tags_from_any(rank, size):
    """By tag, whoever sends first; of one sender in its order."""
    if rank:
        works = [dist.isend(torch.tensor([100.0 * tag + 10 * rank + turn]), 0, tag=tag) for tag in (6, 5) for turn in range(3)]
        for work in works:
            work.wait()
    else:
        for tag in (5, 6):
            seen = []
            for _ in range(3 * (size - 1)):
                out = torch.zeros(1)
                source = dist.recv(out, tag=tag)
                assert int(out.item()) // 10 == 10 * tag + source, f"{out.item()} from {source} with tag {tag}"
                seen.append((source, int(out.item()) % 10))
            for source in range(1, size):
                assert [turn for other, turn in seen if other == source] == [0, 1, 2]
        work = dist.group.WORLD.recv_anysource([torch.zeros(1)], 9)
        assert not work.is_completed()
        work.abort()


def a_batch_in_any_order(rank, size):
    others = [other for other in range(size) if other != rank]
    outs = {(other, tag): torch.zeros(1 + 1000 * tag) for other in others for tag in range(3)}
    ops = [dist.P2POp(dist.irecv, outs[other, tag], other, tag=tag) for other in others for tag in range(3)]
    ops += [dist.P2POp(dist.isend, values(rank + 10 * tag, [1 + 1000 * tag], torch.float32), other, tag=tag) for other in others for tag in range(3)]
    random.Random(rank).shuffle(ops)
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for (other, tag), out in outs.items():
        same(out, values(other + 10 * tag, [1 + 1000 * tag], torch.float32), f"tag {tag} from {other}")
    partner = rank ^ 1
    out = torch.zeros(4 << 20)
    works = [dist.isend(torch.full((4 << 20,), float(rank)), partner), dist.irecv(out, partner)]
    for work in works:  # 16 MB each way at once
        work.wait()
    assert bool((out == partner).all())


def other_dtypes(rank, size):
    """What has no arithmetic can still be sent, as by gloo, and is refused elsewhere by name."""
    for name in ("bits8", "bits16", "int4", "uint1", "float4_e2m1fn_x2"):
        dtype = getattr(torch, name)
        out = torch.zeros(6, dtype=torch.uint8).view(dtype)
        works = [dist.isend((torch.arange(6, dtype=torch.uint8) + rank).view(dtype), (rank + 1) % size), dist.irecv(out, (rank - 1) % size)]
        for work in works:
            work.wait()
        assert out.view(torch.uint8).tolist() == [(rank - 1) % size + place for place in range(6)]
        with pytest.raises(ValueError, match=name):
            dist.broadcast(out, 0)
    halves = torch.complex(torch.arange(3.0) + rank, torch.ones(3)).to(torch.complex32)
    dist.all_reduce(halves)
    assert torch.view_as_real(halves).tolist() == [[size * place + 6, size] for place in range(3)]


def objects_by_message(rank, size):
    if rank == 0:
        for other in range(1, size):
            dist.send_object_list([{"to": other}, "x" * 5000], other)
    else:
        got = [None, None]
        dist.recv_object_list(got, 0)
        assert got == [{"to": rank}, "x" * 5000]


def wrong_messages(rank, size):
    group = dist.group.WORLD
    with pytest.raises((ValueError, RuntimeError), match="itself|own rank"):
        group.send([torch.zeros(1)], rank, 0).wait()
    for peer in (size, -2):
        with pytest.raises((ValueError, RuntimeError), match=str(peer)):
            group.send([torch.zeros(1)], peer, 0)
    with pytest.raises(ValueError, match="one tensor at a time"):
        group.send([torch.zeros(1), torch.zeros(1)], (rank + 1) % size, 0)
    dist.barrier()
    if rank < 2:  # both ends hear of sizes that differ, and go on
        with pytest.raises((ValueError, RuntimeError), match=f"rank {1 - rank}"):
            (group.send([torch.zeros(3)], 1, 4) if rank == 0 else group.recv([torch.zeros(4)], 0, 4)).wait()
        out = torch.zeros(2)
        (group.send([torch.ones(2)], 1, 4) if rank == 0 else group.recv([out], 0, 4)).wait()
        assert rank == 0 or out.tolist() == [1, 1]
    dist.barrier()


# ---- works ----


def ends_in_order(rank, size):
    for _ in range(20):
        tensors = [torch.ones(count) for count in (200000, 3, 50000, 1, 0, 1000)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        works[-1].wait()
        assert all(work.is_completed() for work in works)
    # Nobody keeps the tensor nor the work: the memory stays until the operation has ended.
    for _ in range(50):
        dist.all_reduce(torch.ones(100000), async_op=True)
    last = torch.ones(3)
    dist.all_reduce(last)
    assert last.tolist() == [size] * 3


def waits_let_others_run(rank, size):
    """The interpreter lock is free while a rank waits, in Python's wait and in C++'s (functional collectives)."""
    import torch.distributed._functional_collectives as funcol

    for wait in (lambda: dist.all_reduce(torch.ones(3)), lambda: funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD) + 0):
        counted, stop = [0], threading.Event()

        def count():
            while not stop.is_set():
                counted[0] += 1
                time.sleep(0.001)

        dist.barrier()
        thread = threading.Thread(target=count)
        thread.start()
        if rank == 0:
            time.sleep(0.6)
        before = counted[0]
        start = time.monotonic()
        wait()
        waited = time.monotonic() - start
        during = counted[0] - before
        stop.set()
        thread.join()
        if rank and waited > 0.3:
            assert during > 20, f"another thread ran {during} times in {waited:.2f} s"


def callbacks(rank, size):
    """Of one Future and of chains, from Python: each once, with the value or the error."""
    seen = []
    work = dist.all_reduce(torch.ones(2), async_op=True)
    future = work.get_future()
    future.add_done_callback(lambda done: seen.append(done.value()[0][0].item()))
    chain = future.then(lambda done: done.value()[0] * 2).then(lambda done: done.value().sum().item())
    assert chain.wait() == 4 * size
    assert torch.futures.collect_all([future, chain]).wait()[1].value() == 4 * size
    late = future.then(lambda done: "late")
    assert late.wait() == "late"
    deadline = time.monotonic() + 20
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == [size]
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank == 0:
        work = group.recv([torch.zeros(1)], 1, 3)
        failed = work.get_future().then(lambda done: done.value())
        with pytest.raises(RuntimeError, match="1"):
            failed.wait()
        assert work.exception() is not None and work.is_completed() and not work.is_success()
    dist.barrier()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("what", [by_the_hundred, some_orders, merged, many_threads, tags_from_any, a_batch_in_any_order, other_dtypes, objects_by_message,
                                  wrong_messages, ends_in_order, waits_let_others_run, callbacks], ids=lambda function: function.__name__)
def test_four_ranks(world4, what):
    world4.run(what, seconds=120)


# ---- ways to begin ----


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _begin(rank, size, way, place, pipe):
    import os

    torch.set_num_threads(1)
    if way == "env":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(place), RANK=str(rank), WORLD_SIZE=str(size))
        dist.init_process_group("tn")
    elif way == "tcp":
        dist.init_process_group("cpu:tn", init_method=f"tcp://127.0.0.1:{place}", rank=rank, world_size=size)
    else:
        dist.init_process_group("tn", init_method=f"file://{place}", rank=rank, world_size=size)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    dist.destroy_process_group()
    pipe.send(total.item())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["env", "tcp", "file"])
def test_ways_to_begin(tmp_path, way):
    context = multiprocessing.get_context("spawn")
    place = tmp_path / "store" if way == "file" else _free_port()
    pipes, processes = [], []
    for rank in range(2):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_begin, args=(rank, 2, way, place, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(90), f"rank {rank} gives no answer"
            assert pipe.recv() == 3
    finally:
        for process in processes:
            process.join(20)
            if process.is_alive():
                process.kill()


@pytest.mark.timeout(200)
def test_torchrun_starts_again_after_a_rank_dies(tmp_path):
    torchrun("--max-restarts", 1, HERE / "elastic_script.py", tmp_path, ranks=3)
    assert (tmp_path / "died").read_text() == "1"
    assert [(tmp_path / f"done-{rank}").read_text() for rank in range(3)] == ["restarts 1, steps 8"] * 3
