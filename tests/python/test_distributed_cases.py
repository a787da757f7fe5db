"""Small inputs on which tools of this kind are reported to fail. Those of tensors (strided, bfloat16, empty) are in test_grid*.py, the one of
names that are loopback in test_distributed_hosts.py.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

START = 90  # seconds for a world to be there


def _serve(rank, size, function, path, seconds, pipe, arguments):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("tn", store=dist.FileStore(path, size), rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
    function(rank, size, pipe, *arguments)


@contextlib.contextmanager
def ranks(function, size, folder, *arguments, seconds=20):
    """Processes that run function(rank, size, pipe, *arguments), and our ends of the pipes. `seconds` is the world's time-out."""
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe()
            given = (rank, size, function, str(folder / "store"), seconds, theirs, arguments)
            processes.append(context.Process(target=_serve, args=given, daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        yield processes, pipes
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def heard(pipe, seconds, who):
    assert pipe.poll(seconds), f"{who} says nothing within {seconds} s"
    return pipe.recv()


# ---- a member leaves before the first collective of a subgroup (case 3) ----


def _first_of_a_subgroup(rank, size, pipe, victim, way):
    members = [3, 1, 2]  # torch sorts them: rank 0 of the group is rank 1 of the world
    group = dist.new_group(members, timeout=timedelta(seconds=2))
    dist.barrier()
    if rank == victim:
        pipe.send("going")
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "destroyed":
            dist.destroy_process_group()
        os._exit(0)
    if rank in members:
        pipe.recv()  # the victim is gone
        start = time.monotonic()
        try:
            dist.all_reduce(torch.ones(3), group=group)
            pipe.send("no error")
        except Exception as error:  # noqa: BLE001: sent to the test
            pipe.send((time.monotonic() - start, isinstance(error, RuntimeError), str(error)))
    pipe.recv()
    os._exit(0)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("victim, way", [(3, "killed"), (1, "exited"), (2, "destroyed")])
def test_the_first_collective_of_a_subgroup_names_the_lost_member(tmp_path, victim, way):
    with ranks(_first_of_a_subgroup, 4, tmp_path, victim, way) as (processes, pipes):
        assert heard(pipes[victim], START, "the victim") == "going"
        processes[victim].join(START)
        for rank in {1, 2, 3} - {victim}:
            pipes[rank].send("go")
        for rank in {1, 2, 3} - {victim}:
            seconds, is_runtime_error, text = heard(pipes[rank], 30, f"rank {rank}")
            assert seconds < 4 and is_runtime_error, (seconds, text)
            assert f"rank {victim - 1} " in text and "the world's 1, 2, 3" in text, text


# ---- one of three is gone, and no other is blamed (case 13) ----


def _who_is_missing(rank, size, pipe, way):
    from torchnative.distributed import monitored_barrier

    dist.barrier()
    if rank == 2:
        pipe.send("going")
        os._exit(0)
    pipe.recv()
    try:
        if way == "barrier":
            dist.barrier()
        elif way == "monitored":
            monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=True)
        else:
            dist.all_reduce(torch.ones(1 << 18))
        pipe.send("no error")
    except Exception as error:  # noqa: BLE001: sent to the test
        pipe.send(str(error))
    pipe.recv()
    os._exit(0)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["all_reduce", "barrier", "monitored"])
def test_the_missing_rank_and_no_other_is_named(tmp_path, way):
    with ranks(_who_is_missing, 3, tmp_path, way) as (processes, pipes):
        assert heard(pipes[2], START, "rank 2") == "going"
        processes[2].join(START)
        for rank in (0, 1):
            pipes[rank].send("go")
        for rank in (0, 1):
            text = heard(pipes[rank], 30, f"rank {rank}")
            if way == "monitored" and rank == 1:
                assert "rank 0" in text, text  # which alone knows, and is where torch's message sends the reader
            else:
                assert "ank 2" in text and f"rank {1 - rank} " not in text, text


# ---- a rank that is stopped (case 4) ----


def _loop(rank, size, pipe):
    tensor = torch.ones(4 << 20)  # 16 MB
    for step in range(1 << 30):
        tensor.fill_(rank + step % 5)
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.monotonic()
        try:
            dist.all_reduce(tensor)
        except Exception as error:  # noqa: BLE001: sent to the test
            after = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(("error", str(error), time.monotonic() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
            pipe.recv()
            os._exit(0)
        total = sum(range(size)) + size * (step % 5)
        pipe.send(("step", step, bool((tensor == total).all()), time.monotonic() - start))


def _last(pipe, seconds):
    """The error, or the last step before nothing came for that long."""
    last = None
    while pipe.poll(seconds):
        last = pipe.recv()
        assert last[0] == "error" or last[2], f"wrong sums in step {last[1]}"
        if last[0] == "error":
            break
    return last


@pytest.mark.timeout(180)
def test_a_stopped_rank_holds_the_others_up_and_is_named(tmp_path):
    with ranks(_loop, 4, tmp_path, seconds=8) as (processes, pipes):
        for pipe in pipes:
            assert heard(pipe, START, "a rank")[0] == "step"
        os.kill(processes[1].pid, signal.SIGSTOP)
        time.sleep(2.5)
        stuck = [_last(pipes[rank], 0) for rank in (0, 2, 3)]
        assert all(answer is None or answer[0] == "step" for answer in stuck), stuck
        os.kill(processes[1].pid, signal.SIGCONT)
        for pipe in pipes:  # all of them go on, with right sums
            for _ in range(3):
                answer = heard(pipe, 30, "a rank that goes on")
                assert answer[0] == "step" and answer[2], answer
        os.kill(processes[1].pid, signal.SIGSTOP)
        for rank in (0, 2, 3):
            answer = _last(pipes[rank], 30)
            assert answer is not None and answer[0] == "error", answer
            _, text, seconds, busy = answer
            assert "rank 1" in text and "allreduce" in text.lower(), text
            assert seconds < 20, seconds
            assert busy < 0.2 * seconds, f"{busy:.1f} s of CPU in {seconds:.1f} s of waiting"
        os.kill(processes[1].pid, signal.SIGCONT)


# ---- jobs that meet in a file (case 14) ----


def _meet(rank, size, url, pipe):
    torch.set_num_threads(1)
    try:
        dist.init_process_group("tn", init_method=url, rank=rank, world_size=size, timeout=timedelta(seconds=20))
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        dist.destroy_process_group()
        pipe.send(total.item())
    except Exception as error:  # noqa: BLE001: sent to the test
        pipe.send(f"{type(error).__name__}: {error}")


def test_jobs_meet_in_a_file_one_after_the_other(tmp_path):
    context = multiprocessing.get_context("spawn")
    for job in range(2):  # the second finds the file of the first, or what is left of it
        pipes, processes = [], []
        for rank in range(2):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=_meet, args=(rank, 2, f"file://{tmp_path}/meet", theirs), daemon=True))
            processes[-1].start()
            pipes.append(ours)
        try:
            assert [heard(pipe, START, "a rank") for pipe in pipes] == [3.0, 3.0], f"job {job}"
        finally:
            for process in processes:
                process.join(30)
                if process.is_alive():
                    process.kill()
