"""What a process holds after its groups are gone: no descriptor, no thread, no file."""

import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import torchnative.distributed
from worlds import run_world


def _held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _cycles(rank, world, folder):
    dist.destroy_process_group()  # the world of the harness
    os.environ["TMPDIR"] = os.path.join(folder, "sockets")
    os.environ["TN_TRANSPORT"] = "ipc"
    tempfile.tempdir = None
    held = []
    for cycle in range(5):
        store = dist.FileStore(os.path.join(folder, f"store-{cycle}"), world)
        dist.init_process_group("tn", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
        groups = [dist.new_group(list(range(world))) for _ in range(3)]
        for group in groups:
            work = dist.all_reduce(torch.ones(1000), group=group, async_op=True)
            work.get_future().wait()
            dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(5), (rank + 1) % world, group=group),
                                    dist.P2POp(dist.irecv, torch.ones(5), (rank - 1) % world, group=group)])[-1].wait()
        dist.barrier()
        torchnative.distributed.shrink(groups[0])
        dist.destroy_process_group()
        del groups, group, work, store
        if cycle < 2:  # for what is made once in a process
            time.sleep(1.0)
            held = _held()
            continue
        deadline = time.monotonic() + 20
        while any(now > before for now, before in zip(_held(), held)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert all(now <= before for now, before in zip(_held(), held)), (cycle, _held(), held)
    dist.init_process_group("tn", store=dist.FileStore(os.path.join(folder, "store"), world), rank=rank, world_size=world)
    return True


def test_destroyed_groups_leave_nothing(tmp_path):
    (tmp_path / "sockets").mkdir()
    assert run_world(_cycles, 3, str(tmp_path)) == [True] * 3
    assert list((tmp_path / "sockets").iterdir()) == []
