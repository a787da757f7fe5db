"""Importing is cheap, and torch finds the backend by itself."""

import subprocess
import sys

import pytest


def python(code, **environment):
    import os

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_takes_less_than_50_ms_and_leaves_torch_alone():
    code = """if True:
        import sys, time
        start = time.perf_counter()
        import torchnative
        print(time.perf_counter() - start, "torch" in sys.modules)
    """
    took, torch_too = min(python(code).split() for _ in range(5))
    assert torch_too == "False"
    assert float(took) < 0.05


def test_torch_finds_the_backend_without_an_import():
    code = """if True:
        import torch, sys
        import torch.distributed as dist
        assert "torchnative._tn" not in sys.modules
        dist.init_process_group("tn", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.arange(3.)
        dist.all_reduce(x)
        print(dist.get_backend(), x.tolist())
        dist.destroy_process_group()
    """
    assert python(code) == "tn [0.0, 1.0, 2.0]"


@pytest.mark.parametrize("first", ["torch", "torchnative.distributed"])
@pytest.mark.parametrize("autoload", ["0", "1"])
def test_registered_once_whatever_is_imported_first(first, autoload):
    code = f"""if True:
        import {first}
        import torchnative.distributed, torch.distributed as dist
        print(dist.Backend.backend_list.count("tn"), dist.Backend.TN, torchnative.distributed.ProcessGroupTN.__name__)
    """
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload) == "1 tn ProcessGroupTN"


def test_a_forked_child_can_make_its_own_group():
    code = """if True:
        import os, torch, torch.distributed as dist, torchnative.distributed
        torchnative.distributed.ProcessGroupTN
        child = os.fork()
        if child == 0:
            dist.init_process_group("tn", store=dist.HashStore(), rank=0, world_size=1)
            x = torch.ones(2)
            work = dist.all_reduce(x, async_op=True)
            assert work.get_future().wait()[0].tolist() == [1, 1]
            dist.destroy_process_group()
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert python(code) == "7"
