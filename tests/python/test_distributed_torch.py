"""What torch builds on a process group, on backend tn: DDP and its hooks, sharding, DTensor, torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent


def torchrun(*arguments, ranks=4, seconds=150, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.timeout(320)
def test_torchrun_with_ddp_gives_gloos_weights(tmp_path):
    for backend in ("tn", "gloo"):
        torchrun(HERE / "ddp_script.py", backend, tmp_path / backend)
    ours, theirs = ([torch.load(tmp_path / f"{backend}-{rank}") for rank in range(4)] for backend in ("tn", "gloo"))
    assert all(torch.equal(ours[0], weights) for weights in ours), "ranks ended with different weights"
    # Sums of four numbers in another order: equal to rounding.
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-6, atol=1e-7)


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def batches(rank, count=3):
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(8, 8, generator=generator) for _ in range(count)]


def trained_alone(size, count=3):
    """One process that sees every rank's batch."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(count):
        optimizer.zero_grad()
        (sum(model(batches(rank)[step]).square().mean() for rank in range(size)) / size).backward()
        optimizer.step()
    return model


def close(model, size, rtol=1e-5):
    for got, want in zip(model.parameters(), trained_alone(size).parameters()):
        torch.testing.assert_close(got, want, rtol=rtol, atol=1e-6 if rtol < 1e-4 else 2e-3)


def ddp(rank, size, hook=None):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = torch.nn.parallel.DistributedDataParallel(network(seed=rank), bucket_cap_mb=0.0005)
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), network().parameters()):
            mine.copy_(theirs)
    rtol = 1e-5
    if hook == "allreduce":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        rtol = 1e-2
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        rtol = None
    elif hook == "builtin fp16":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        rtol = 1e-2
    elif hook == "builtin allreduce":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for data in batches(rank):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    if rtol is not None:
        close(model.module, size, rtol)
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("hook", [None, "allreduce", "fp16", "powersgd", "builtin fp16", "builtin allreduce"])
def test_ddp(world, hook):
    world.run(ddp, hook)


def fsdp2(rank, size):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model = network()
    mesh = dist.init_device_mesh("cpu", (size,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert isinstance(model[0].weight, DTensor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for data in batches(rank):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    for got, want in zip(model.parameters(), trained_alone(size).parameters()):
        torch.testing.assert_close(got.full_tensor(), want, rtol=1e-5, atol=1e-6)


def dtensor(rank, size):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (size,))
    whole = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)  # 7 rows: uneven shards
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal((sharded @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])).full_tensor(), whole @ whole.t())
    assert sharded.sum().full_tensor().item() == whole.sum().item()
    partial = torch.distributed.tensor.DTensor.from_local(whole, mesh, [Partial()])
    assert torch.equal(partial.full_tensor(), whole * size)


def zero(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for data in batches(rank):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    close(model.module, size)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("feature", [fsdp2, dtensor, zero], ids=lambda function: function.__name__)
def test_feature(world, feature):
    world.run(feature)
