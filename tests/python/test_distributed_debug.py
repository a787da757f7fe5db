"""TN_DEBUG=DETAIL: ranks that do different things are told which of them differs, and how."""

import pytest
import torch
import torch.distributed as dist

from torchnative.distributed import _options
from worlds import run_world


def _shapes(rank, world):
    dist.all_reduce(torch.ones(2, 3))  # all alike: nothing is said
    dist.all_reduce(torch.ones(6) if rank == 1 else torch.ones(2, 3))


def _operations(rank, world):
    if rank == 1:
        dist.broadcast(torch.ones(2, dtype=torch.int64), 0)
    else:
        dist.all_reduce(torch.ones(2, 3), op=dist.ReduceOp.MAX)


@pytest.mark.parametrize(
    "function, says",
    [
        (_shapes, ["rank 1: allreduce SUM of float32 [6]", "ranks 0 and 2: allreduce SUM of float32 [2, 3]"]),
        (_operations, ["rank 1: broadcast of int64 [2] from root 0", "ranks 0 and 2: allreduce MAX of float32 [2, 3]"]),
    ],
)
@pytest.mark.parametrize("variable", ["TN_DEBUG", "TORCH_DISTRIBUTED_DEBUG"])
def test_who_differs_and_how_is_told_to_all(monkeypatch, variable, function, says):
    monkeypatch.setenv(variable, "DETAIL")
    for text in run_world(function, 3, errors=True):
        assert text.startswith("ValueError: allreduce") or text.startswith("ValueError: broadcast"), text
        assert all(words in text for words in says), text


def test_another_level_is_refused_by_name(monkeypatch):
    default = dist.distributed_c10d.default_pg_timeout
    monkeypatch.setenv("TN_DEBUG", "perhaps")
    with pytest.raises(ValueError, match="TN_DEBUG='perhaps'"):
        _options.group_options(dist.HashStore(), default, default)
