"""What torch builds on process groups, on backend tn, against one process that does the same alone: DDP's ways, tensor and pipeline parallelism,
sharding by two dimensions, checkpoints.
"""

import copy
import multiprocessing

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(rank, step=0, rows=8):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1000 * step + rank))


def close(got, want, **tolerance):
    torch.testing.assert_close(got, want, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


def all_close(model, alone, **tolerance):
    for (name, got), (_, want) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
        close(got, want, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def stepped(model, loss_of, steps=3, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return model


def mean_loss(size):
    return lambda model, step: sum(model(batch(rank, step)).square().mean() for rank in range(size)) / size


def own_loss(rank):
    return lambda model, step: model(batch(rank, step)).square().mean()


# ---- DDP ----


class Branches(nn.Module):
    """Uses one branch or the other, by the input: the rest has no gradient on that rank."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.left, self.right, self.never = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, data, left):
        return (self.left if left else self.right)(data)


def ddp_unused_parameters(rank, size):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    alone = Branches()
    stepped(model, lambda m, step: m(batch(rank, step), (rank + step) % 2 == 0).square().mean())
    stepped(alone, lambda m, step: sum(m(batch(r, step), (r + step) % 2 == 0).square().mean() for r in range(size)) / size)
    all_close(model.module, alone)
    assert model.module.never.weight.grad is None or not model.module.never.weight.grad.any()


def ddp_ways(rank, size):
    alone = stepped(network(), mean_loss(size))
    for options in ({"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 0.0001}, {"broadcast_buffers": False}):
        all_close(stepped(DistributedDataParallel(network(), **options), own_loss(rank)).module, alone)


def ddp_with_loader_workers(rank, size):
    """The loader's workers are forked from a rank, groups and threads and all."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    multiprocessing.current_process()._config["daemon"] = False  # the harness's ranks are daemons, which may have no children
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16 * size, 8))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, size, rank, shuffle=False), num_workers=2, multiprocessing_context="fork")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (rows,) in loader:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    alone = network()
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(4):
        single.zero_grad()
        alone(data.tensors[0][4 * size * step : 4 * size * (step + 1)]).square().mean().backward()
        single.step()
    all_close(model.module, alone)


def ddp_no_sync(rank, size):
    model = DistributedDataParallel(network())
    with model.no_sync():
        model(batch(rank, 0)).square().mean().backward()
    model(batch(rank, 1)).square().mean().backward()
    alone = network()
    for step in range(2):
        mean_loss(size)(alone, step).backward()
    for got, want in zip(model.parameters(), alone.parameters()):
        close(got.grad, want.grad)


def ddp_buffers(rank, size):
    """Rank 0's buffers are everybody's before each step."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
    stepped(model, own_loss(rank))
    seen = []
    model.module.register_forward_pre_hook(lambda module, inputs: seen.append(module[1].running_mean.clone()))
    model(batch(rank, 9))
    means = [torch.empty(4) for _ in range(size)]
    dist.all_gather(means, seen[0])
    assert all(torch.equal(mean, means[0]) for mean in means) and means[0].any()
    assert model.module[1].num_batches_tracked.item() == 4


def ddp_hooks(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook

    alone = stepped(network(), mean_loss(size))
    group = dist.group.WORLD
    for hook, state, tolerance in (
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), group, {"rtol": 0.01, "atol": 2e-3}),
        (post_localSGD_hook, PostLocalSGDState(group, None, start_localSGD_iter=100), {"rtol": 1e-5, "atol": 1e-6}),
    ):
        model = DistributedDataParallel(network())
        model.register_comm_hook(state, hook)
        all_close(stepped(model, own_loss(rank)).module, alone, **tolerance)

    def doubled(state, bucket):  # a hook of the user's own, with a Future of a Future
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0].div_(size).mul_(2))

    model = DistributedDataParallel(network())
    model.register_comm_hook(None, doubled)
    model(batch(rank)).square().mean().backward()
    single = network()
    mean_loss(size)(single, 0).backward()
    for got, want in zip(model.parameters(), single.parameters()):
        close(got.grad, 2 * want.grad)


def ddp_join(rank, size):
    """Ranks with fewer batches shadow the collectives of the others."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(1 + rank):
            optimizer.zero_grad()
            model(batch(rank, step)).square().mean().backward()
            optimizer.step()
    alone = network()
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(size):  # Join divides by the size of the world it began with
        single.zero_grad()
        (sum(alone(batch(r, step)).square().mean() for r in range(step, size)) / size).backward()
        single.step()
    for got in model.parameters():
        first = got.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, got)
    all_close(model.module, alone)


def zero_state(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    alone = network()
    single = torch.optim.Adam(alone.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        own_loss(rank)(model, step).backward()
        optimizer.step()
        single.zero_grad()
        mean_loss(size)(alone, step).backward()
        single.step()
    all_close(model.module, alone)
    optimizer.consolidate_state_dict(to=size - 1)
    if rank == size - 1:
        state = optimizer.state_dict()
        for index, parameter in enumerate(alone.parameters()):
            close(state["state"][index]["exp_avg"], single.state[parameter]["exp_avg"])


# ---- meshes, sharding, tensor parallelism ----


def mesh_2d(size):
    return dist.init_device_mesh("cpu", (2, size // 2) if size > 1 else (1, 1), mesh_dim_names=("dp", "tp"))


def meshes(rank, size):
    mesh = mesh_2d(size)
    for name in ("dp", "tp"):
        group = mesh[name].get_group()
        ranks = dist.get_process_group_ranks(group)
        assert rank in ranks and mesh.get_local_rank(name) == ranks.index(rank)
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=group)
        assert total.item() == sum(ranks)
    flat = mesh._flatten("all")
    total = torch.tensor([1.0])
    dist.all_reduce(total, group=flat.get_group())
    assert total.item() == size
    odd = DeviceMesh("cpu", list(range(size))[::-1])
    assert list(odd.get_coordinate()) == [size - 1 - rank]


def tensor_parallel(rank, size):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (size,))
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert model[0].weight.to_local().shape == (16 // size, 8)
    alone = network()
    stepped(model, lambda m, step: m(batch(0, step)).square().mean())
    stepped(alone, lambda m, step: m(batch(0, step)).square().mean())
    for got, want in zip(model.parameters(), alone.parameters()):
        close(got.full_tensor(), want)
    norm = nn.Sequential(nn.LayerNorm(8))
    parallel = parallelize_module(copy.deepcopy(norm), mesh, {"0": SequenceParallel(sequence_dim=0)})
    data = batch(0, rows=2 * size)
    close(parallel(data[2 * rank : 2 * rank + 2]).full_tensor(), norm(data))


def sharded_in_two_dimensions(rank, size):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh_2d(size)
    model = parallelize_module(network(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["dp"])
    replicas = mesh["dp"].size()
    mine = mesh.get_local_rank("dp")
    stepped(model, lambda m, step: m(batch(mine, step)).square().mean())
    alone = stepped(network(), mean_loss(replicas))
    for got, want in zip(model.parameters(), alone.parameters()):
        close(got.full_tensor(), want)


def fsdp2_ways(rank, size):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    alone = stepped(network(), mean_loss(size))
    for options in ({"reshard_after_forward": False}, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}):
        model = network()
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (size,)), **options)
        stepped(model, own_loss(rank))
        for got, want in zip(model.parameters(), alone.parameters()):
            close(got.full_tensor(), want)
    model = network()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (size,)), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    stepped(model, lambda m, step: m(batch(rank, step)).float().square().mean())
    for got, want in zip(model.parameters(), alone.parameters()):
        close(got.full_tensor(), want, rtol=0.05, atol=0.02)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert norm.full_tensor().item() > 0


def fsdp1(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), sharding_strategy=strategy, use_orig_params=True)
        stepped(model, own_loss(rank))
        alone = stepped(network(), mean_loss(size))
        with FullyShardedDataParallel.summon_full_params(model):
            all_close(model, alone)


def dtensor_operations(rank, size):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (size,))
    whole = torch.randn(6, 10, generator=torch.Generator().manual_seed(5))
    rows, columns = (distribute_tensor(whole, mesh, [Shard(dim)]) for dim in (0, 1))
    for got, want in (
        (rows + 1, whole + 1),
        (rows.softmax(1), whole.softmax(1)),
        (columns.softmax(1), whole.softmax(1)),
        (rows.t() @ rows, whole.t() @ whole),
        (columns.mean(0), whole.mean(0)),
        (columns.max(), whole.max()),
        (torch.cat([rows, rows]), torch.cat([whole, whole])),
        (columns.to(torch.bfloat16).sum(1), whole.to(torch.bfloat16).sum(1)),
    ):
        close(got.full_tensor(), want, rtol=1e-5 if want.dtype == torch.float32 else 0.05, atol=1e-6 if want.dtype == torch.float32 else 0.05)
    weight = distribute_tensor(whole.clone(), mesh, [Shard(0)]).requires_grad_()
    (weight * rows).sum().backward()
    close(weight.grad.full_tensor(), whole)
    layer = distribute_module(network(), mesh)
    assert all(isinstance(parameter, DTensor) and parameter.placements == (Replicate(),) for parameter in layer.parameters())


def checkpoints(rank, size, folder):
    """Saved from one way of sharding, loaded into another."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (size,))
    model = network()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(2):
        own_loss(rank)(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    other = network(seed=9)
    fully_shard(other, mesh=mesh)
    second = torch.optim.Adam(other.parameters(), lr=0.5)
    weights, state = get_state_dict(other, second)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(other, second, model_state_dict=weights, optim_state_dict=state)
    assert second.param_groups[0]["lr"] == 0.01
    for got, want in zip(other.parameters(), model.parameters()):
        assert torch.equal(got.full_tensor(), want.full_tensor())
        assert torch.equal(second.state[got]["exp_avg"].full_tensor(), optimizer.state[want]["exp_avg"].full_tensor())
    columns = {"model": {"0.weight": distribute_tensor(torch.zeros(16, 8), mesh, [Shard(1)])}}
    dcp.load(columns, checkpoint_id=folder)
    assert torch.equal(columns["model"]["0.weight"].full_tensor(), model[0].weight.full_tensor())
    dist.barrier()
    future = dcp.async_save({"model": get_state_dict(model, [])[0]}, checkpoint_id=f"{folder}-async", process_group=dist.new_group())
    future.result()
    alone = {"model": {"2.bias": torch.zeros(4)}}
    dcp.load(alone, checkpoint_id=f"{folder}-async")
    close(alone["model"]["2.bias"], model[2].bias.full_tensor())


# ---- pipelines, functional collectives, compilation ----


def pipeline(rank, size):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, Schedule1F1B

    def layers():
        torch.manual_seed(1)
        return nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(size))

    data, target = batch(0, rows=8), batch(1, rows=8)
    alone = layers()
    out = data
    for layer in alone:
        out = layer(out)
    nn.functional.mse_loss(out, target).backward()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        mine = layers()[rank]
        stage = PipelineStage(mine, rank, size, torch.device("cpu"))
        run = schedule(stage, n_microbatches=max(size, 2), loss_fn=nn.functional.mse_loss)
        losses = []
        result = run.step(*([data] if rank == 0 else []), **({"target": target, "losses": losses} if rank == size - 1 else {}))
        if rank == size - 1:
            close(result, out)
            assert len(losses) == max(size, 2)
        close(mine[0].weight.grad, alone[rank][0].weight.grad)


def functional_with_gradients(rank, size):
    import torch.distributed._functional_collectives as funcol
    from torch.distributed.nn import functional as differentiable

    group = dist.group.WORLD
    mine = batch(rank, rows=2 * size).requires_grad_()
    weights = torch.arange(2.0 * size * size).view(-1, 1)
    (funcol.all_gather_tensor_autograd(mine, 0, group) * weights).sum().backward()
    close(mine.grad, (size * weights[2 * size * rank : 2 * size * (rank + 1)]).expand(-1, 8))
    mine.grad = None
    funcol.reduce_scatter_tensor_autograd(mine, "sum", 0, group).sum().backward()
    close(mine.grad, torch.ones(2 * size, 8))
    mine.grad = None
    (funcol.all_to_all_single_autograd(mine, None, None, group) * (rank + 1)).sum().backward()
    close(mine.grad, torch.arange(1.0, size + 1).repeat_interleave(2).view(-1, 1).expand(-1, 8))
    mine.grad = None
    (differentiable.all_reduce(mine) * (rank + 1)).sum().backward()
    close(mine.grad, torch.full((2 * size, 8), size * (size + 1) / 2))
    source = batch(rank, rows=1)
    close(funcol.permute_tensor(source[0], [(r + 1) % size for r in range(size)], group) + 0, batch((rank - 1) % size, rows=1)[0])
    pieces = funcol.reduce_scatter_tensor_coalesced([mine.detach(), mine.detach() * 2], "avg", [0, 0], group)
    mean = sum(batch(r, rows=2 * size) for r in range(size)) / size
    for factor, piece in enumerate(pieces, 1):
        close(piece + 0, factor * mean[2 * rank : 2 * rank + 2])
    gathered = funcol.all_gather_into_tensor_coalesced([source, source * 2], group)
    for factor, whole in enumerate(gathered, 1):
        close(whole + 0, factor * torch.cat([batch(r, rows=1) for r in range(size)]))


def compiled(rank, size):
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD

    @torch.compile(backend="aot_eager", fullgraph=True)
    def program(tensor):
        return funcol.all_reduce(tensor * 2, "sum", group) + funcol.all_gather_tensor(tensor[:1], 0, group).sum()

    data = batch(rank, rows=3)
    want = 2 * sum(batch(r, rows=3) for r in range(size)) + sum(batch(r, rows=3)[0] for r in range(size)).sum()
    close(program(data), want)
    model = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    model(batch(rank)).square().mean().backward()
    alone = network()
    mean_loss(size)(alone, 0).backward()
    for got, wanted in zip(model.parameters(), alone.parameters()):
        close(got.grad, wanted.grad)


FEATURES = [ddp_unused_parameters, ddp_ways, ddp_with_loader_workers, ddp_no_sync, ddp_buffers, ddp_hooks, ddp_join, zero_state, meshes,
            tensor_parallel, sharded_in_two_dimensions, fsdp2_ways, fsdp1, dtensor_operations, pipeline, functional_with_gradients, compiled]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("feature", FEATURES, ids=lambda function: function.__name__)
def test_feature(world4, feature):
    world4.run(feature, seconds=150)


@pytest.mark.timeout(200)
def test_checkpoints(world4, tmp_path):
    world4.run(checkpoints, str(tmp_path / "checkpoint"), seconds=150)
