"""Worlds that lose a rank and go on without it."""

import multiprocessing
import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torchnative.distributed
from torchnative import _tn

REPEATS = int(os.environ.get("TN_TEST_REPEAT", "1"))
ELEMENTS = 1 << 18


def _rounds(group, ranks, rounds=None):
    """Sums that are checked, until one fails or there were enough of them."""
    done = 0
    while rounds is None or done < rounds:
        tensor = torch.full((ELEMENTS,), float(dist.get_rank() + done))
        dist.all_reduce(tensor, group=group)
        assert tensor.unique().tolist() == [float(sum(ranks) + done * len(ranks))]
        done += 1


def _go_on(rank, size, path, pipe):
    torch.set_num_threads(1)
    dist.init_process_group("tn", store=dist.FileStore(path, size), rank=rank, world_size=size, timeout=timedelta(seconds=60))
    group, lost = dist.group.WORLD, {}
    while len(lost) < 2:
        pipe.send("running")
        try:
            _rounds(group, [r for r in range(size) if r not in lost])
        except dist.DistBackendError as error:
            raised = time.time()
            new = torchnative.distributed.shrink(group, timeout=timedelta(seconds=40))
            members = dist.get_process_group_ranks(new)
            gone = [r for r in range(size) if r not in members and r not in lost]
            lost[gone[0]] = True
            assert new.rank() == members.index(rank) and dist.get_rank(new) == new.rank() and dist.get_world_size(new) == len(members)
            if group is not dist.group.WORLD:
                dist.destroy_process_group(group)
            group = new
            pipe.send((raised, gone, str(error)))
    _rounds(group, dist.get_process_group_ranks(group), 5)
    dist.destroy_process_group()
    left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    pipe.send(("over", left))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("repeat", range(REPEATS))
def test_the_others_go_on(tmp_path, repeat):
    """Five ranks, of which two are killed one after the other, at some moment of a loop of sums."""
    context = multiprocessing.get_context("spawn")
    size, victims, pipes, ranks = 5, [(repeat + 1) % 5, (repeat + 3) % 5], [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        ranks.append(context.Process(target=_go_on, args=(rank, size, str(tmp_path / "store"), theirs), daemon=True))
        ranks[-1].start()
        theirs.close()
        pipes.append(ours)
    alive = list(range(size))

    def told(rank):
        assert pipes[rank].poll(60), f"rank {rank} says nothing"
        return pipes[rank].recv()

    try:
        for victim in victims:
            assert [told(rank) for rank in alive] == ["running"] * len(alive)
            time.sleep(0.05 + repeat * 37 % 100 / 1000)
            os.kill(ranks[victim].pid, signal.SIGKILL)
            died = time.time()
            alive.remove(victim)
            for rank in alive:
                raised, gone, text = told(rank)
                assert raised - died < 5 and gone == [victim]
                assert f"rank {victim if len(alive) == 4 else victim - (victim > victims[0])} is gone" in text, text
        for rank in alive:
            assert told(rank) == ("over", [])
            ranks[rank].join(30)
            assert ranks[rank].exitcode == 0
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()


def test_a_group_of_another_backend_is_refused(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="backend 'tn'"):
            torchnative.distributed.shrink()
    finally:
        dist.destroy_process_group()


def test_a_world_of_one_shrinks_to_itself(tmp_path):
    dist.init_process_group("tn", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        new = torchnative.distributed.shrink()
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=new)
        assert tensor.tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match="was shrunk here before"):
            torchnative.distributed.shrink()
        with pytest.raises(_tn.Cancelled, match="shrinks the group"):
            dist.all_reduce(tensor)
    finally:
        dist.destroy_process_group()
