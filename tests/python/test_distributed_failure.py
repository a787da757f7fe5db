"""Ranks that die, variables that make no sense, and groups that are closed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from torchnative.distributed import _options


def _survive(rank, size, path, victim, pipe):
    torch.set_num_threads(1)
    dist.init_process_group("tn", store=dist.FileStore(path, size), rank=rank, world_size=size, timeout=timedelta(seconds=60))
    tensor = torch.ones(1 << 20)
    step = 0
    try:
        while True:
            dist.all_reduce(tensor)
            step += 1
            if rank == victim and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
    except Exception as error:  # noqa: BLE001: sent to the test
        raised = time.time()
        try:
            dist.all_reduce(tensor)
            again = "nothing"
        except Exception as second:  # noqa: BLE001
            again = f"{type(second).__name__}: {second}"
        pipe.send((raised, [kind.__name__ for kind in type(error).__mro__], str(error), again))
    dist.destroy_process_group()
    pipe.send("destroyed")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("victim", [0, 2, 3])
def test_a_killed_rank_is_named_by_all_others(tmp_path, victim):
    context = multiprocessing.get_context("spawn")
    size, pipes, ranks = 4, [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        ranks.append(context.Process(target=_survive, args=(rank, size, str(tmp_path / "store"), victim, theirs), daemon=True))
        ranks[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        ranks[victim].join(120)
        died = time.time()
        assert ranks[victim].exitcode == -signal.SIGKILL
        for rank in set(range(size)) - {victim}:
            assert pipes[rank].poll(30), f"rank {rank} still waits for rank {victim}"
            raised, kinds, text, again = pipes[rank].recv()
            assert raised - died < 5
            assert "DistBackendError" in kinds, (kinds, text)
            assert f"rank {victim}" in text and "allreduce" in text.lower(), text
            assert f"rank {victim}" in again, again
            assert pipes[rank].poll(30) and pipes[rank].recv() == "destroyed"
            ranks[rank].join(30)
            assert ranks[rank].exitcode == 0
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()


def lonely(**environment):
    """A world of one in a fresh interpreter: the error, or what was printed."""
    code = """if True:
        import torch, torch.distributed as dist
        dist.init_process_group("tn", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(1); dist.all_reduce(x); print(int(x))
        dist.destroy_process_group()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    return done.returncode, done.stdout.strip() + done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"TN_TRANSPORT": "carrier-pigeon"}, "carrier-pigeon"),
        ({"TN_TRANSPORT": "shm"}, "shared memory"),
        ({"TN_TRANSPORT": "tls"}, "TN_TLS_CERT"),
        ({"TN_TRANSPORT": ""}, "TN_TRANSPORT is empty"),
        ({"TN_TLS": "perhaps"}, "perhaps"),
        ({"TN_TIMEOUT": "soon"}, "soon"),
        ({"TN_TIMEOUT": "-1"}, "-1"),
        ({"TN_IFACE": "no0such"}, "no0such"),
        ({"TN_TUNE": "x"}, "TN_TUNE"),
    ],
)
def test_variables_that_make_no_sense_are_refused_by_name(monkeypatch, environment, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    default = dist.distributed_c10d.default_pg_timeout
    with pytest.raises(ValueError, match=words):
        _options.group_options(dist.HashStore(), default, default)


def test_variables_are_used(monkeypatch):
    default = dist.distributed_c10d.default_pg_timeout
    monkeypatch.setenv("TN_TIMEOUT", "7.5")
    monkeypatch.setenv("TN_IFACE", "lo")
    monkeypatch.setenv("TN_TRANSPORT", "shm,tcp")
    options = _options.group_options(dist.HashStore(), default, default)
    assert options == {"transport": "tcp", "timeout": 7.5, "host": "127.0.0.1"}
    assert _options.group_options(dist.HashStore(), timedelta(seconds=3), default)["timeout"] == 3


def test_a_refused_variable_reaches_the_user():
    code, text = lonely(TN_TRANSPORT="smoke")
    assert code != 0 and "smoke" in text
    assert lonely(TN_TRANSPORT="tcp") == (0, "1")


@pytest.mark.parametrize("backend", ["cpu:tn,cuda:gloo", "cuda:tn"])
def test_device_maps_are_refused_by_name(backend):
    with pytest.raises(ValueError, match="device map.*tn"):
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()


def test_the_map_of_the_cpu_alone_works():
    dist.init_process_group("cpu:tn", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1, 1]
    finally:
        dist.destroy_process_group()


def test_options_of_another_backend_are_refused():
    with pytest.raises(ValueError, match="pg_options"):
        dist.init_process_group("tn", store=dist.HashStore(), rank=0, world_size=1, pg_options=object())
    assert not dist.is_initialized()


def test_a_closed_group_says_so():
    from torchnative import _tn
    from torchnative.distributed import ProcessGroupTN

    group = ProcessGroupTN(dist.HashStore(), 0, 1, timedelta(seconds=5))
    group.shutdown()
    group.shutdown()
    with pytest.raises(_tn.Cancelled, match="closed"):
        group.allreduce([torch.ones(1)])


def test_an_aborted_group_says_so():
    from torchnative import _tn
    from torchnative.distributed import ProcessGroupTN

    group = ProcessGroupTN(dist.HashStore(), 0, 1, timedelta(seconds=5))
    group.abort()
    with pytest.raises(_tn.Cancelled):
        group.allreduce([torch.ones(1)]).wait()
    group.shutdown()


def test_a_rank_that_never_comes_is_named_in_time(tmp_path):
    from torchnative.distributed import ProcessGroupTN

    start = time.monotonic()
    with pytest.raises((RuntimeError, TimeoutError), match="rank 1"):
        ProcessGroupTN(dist.FileStore(str(tmp_path / "store"), 2), 0, 2, timedelta(seconds=1))
    assert time.monotonic() - start < 20
