"""Noise in the Engine: over a group, alone, and on this participant's own update."""

import math

import pytest
import torch
import torch.distributed as dist
from test_federated import Server, adds, in_threads
from worlds import run_world

from torchnative import _tn, privacy
from torchnative.nn import federated

SIZE = 64 * 64 + 64


def square() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(64, 64)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def moved(train, **arguments) -> tuple[torch.Tensor, federated.History]:
    model = square()
    before = flat(model)
    history = federated.Engine(model, train=train, progress=False, **arguments).participate()
    return flat(model) - before, history


# ---- alone ------------------------------------------------------------------------------------------------------------


def test_central_noise_and_what_it_spends():
    delta, history = moved(adds(0.0, 7), rounds=1, privacy=[federated.CentralDP(clip=0.5, noise=2.0, denominator=10)])
    assert delta.std().item() == pytest.approx(2 * 0.5 / 10, rel=0.05)
    _, history = moved(adds(0.0, 7), rounds=3, privacy=[federated.CentralDP(clip=0.5, noise=2.0)])
    assert [record.epsilon for record in history] == [privacy.epsilon(q=1, sigma=2, steps=k, delta=1e-5) for k in (1, 2, 3)]


def test_the_budget_ends_the_run():
    spent = privacy.epsilon(q=1, sigma=4, steps=2, delta=1e-5)
    _, history = moved(adds(0.0, 1), rounds=9, privacy=[federated.CentralDP(clip=1, noise=4, budget=spent)])
    assert len(history) == 2 and history[-1].epsilon == spent


def test_an_update_is_clipped():
    delta, _ = moved(adds(3.0, 1000), rounds=1, privacy=[federated.CentralDP(clip=2, noise=0.01)])
    assert delta.norm().item() == pytest.approx(2, rel=0.2) and delta.mean().item() == pytest.approx(2 / math.sqrt(SIZE), rel=0.05)


@pytest.mark.parametrize("value, direction", [(1.0, 1), (1e-7, -1)])
def test_the_clip_follows_the_updates(value, direction):
    seen = []

    class Watched(federated.Engine):
        def _open(self):
            channel = super()._open()
            seen.append(channel)
            return channel

    central = federated.CentralDP(clip=0.1, noise=0.01, quantile=0.5)
    Watched(square(), rounds=10, train=adds(value, 1), progress=False, privacy=[central]).participate()
    assert math.log(seen[0].clip / 0.1) * direction == pytest.approx(10 * 0.2 * 0.5, abs=0.2)


def test_local_noise_and_what_it_spends():
    local = federated.LocalDP(clip=0.5, epsilon=2.0, delta=1e-6)
    delta, history = moved(adds(0.0, 7), rounds=1, privacy=[local])
    assert delta.std().item() == pytest.approx(privacy.gaussian_sigma(epsilon=2, delta=1e-6) * 2 * 0.5, rel=0.05)
    assert history[0].epsilon == 2 and history[0].examples == 7
    _, history = moved(adds(0.0, 7), rounds=3, privacy=[local])
    assert history[1].epsilon == privacy.epsilon(q=1, sigma=local.sigma, steps=2, delta=1e-6) < history[2].epsilon


def test_counters_do_not_change_under_noise():
    for kind in (federated.CentralDP(clip=1, noise=0.01), federated.LocalDP(clip=1, epsilon=10)):
        model = torch.nn.BatchNorm1d(4)

        def train(model, round):
            model.num_batches_tracked += 5
            model.running_mean += 0.5
            return federated.Update(1)

        federated.Engine(model, rounds=1, train=train, progress=False, privacy=[kind]).participate()
        assert int(model.num_batches_tracked) == 0 and model.running_mean.abs().sum() > 0


# ---- over a group -----------------------------------------------------------------------------------------------------


def central_rank(rank, world):
    model = square()
    before = flat(model)
    train = adds([0.01, -0.02, 5.0][rank], [1, 1000, 10][rank], loss=float(rank))
    central = federated.CentralDP(clip=2, noise=0.01)
    history = federated.Engine(model, rounds=1, train=train, progress=False, privacy=[central]).participate()
    delta = flat(model) - before
    return delta.mean().item(), delta.std().item(), delta.sum().item(), history[0].loss, history[0].epsilon, history[0].cohort


def test_over_a_group_everybody_counts_the_same_and_ends_with_the_same_bits():
    rows = run_world(central_rank, 3)
    assert len({row[2] for row in rows}) == 1
    mean = (0.01 - 0.02 + 2 / math.sqrt(SIZE)) / 3
    assert rows[0][0] == pytest.approx(mean, abs=5 * 0.02 / 3 / math.sqrt(SIZE))
    assert rows[0][1] == pytest.approx(0.01 * 2 / 3, rel=0.05)
    assert [row[3] for row in rows] == [0.0, 1.0, 2.0]  # a rank's own loss: nobody else's is told
    assert {row[4:] for row in rows} == {(privacy.epsilon(q=1, sigma=0.01, steps=1, delta=1e-5), 3)}


def adaptive_rank(rank, world):
    central = federated.CentralDP(clip=0.1, noise=0.01, quantile=0.5, denominator=3)
    model = square()
    federated.Engine(model, rounds=3, train=adds(1.0, 1), progress=False, privacy=[central]).participate()
    return flat(model).sum().item()


def test_the_clip_is_the_same_on_every_rank():
    assert len(set(run_world(adaptive_rank, 3))) == 1


def differing_rank(rank, world):
    noise = federated.CentralDP(clip=1, noise=[1.0, 2.0][rank])
    federated.Engine(square(), rounds=1, train=adds(1.0, 1), progress=False, privacy=[noise]).participate()


def only_one_rank(rank, world):
    kinds = [federated.CentralDP(clip=1, noise=1.0)] if rank == 0 else []
    federated.Engine(square(), rounds=1, train=adds(1.0, 1), progress=False, privacy=kinds).participate()


def test_ranks_that_were_told_differently_are_told_so():
    rows = run_world(differing_rank, 2, errors=True)
    assert "ValueError: rank 0 was told privacy=[CentralDP(clip=1, noise=1.0," in rows[1] and "noise=2.0" in rows[1]
    assert "rank 1" in rows[0]
    rows = run_world(only_one_rank, 2, errors=True)
    assert "rank 1 privacy=[]; they must be told the same" in rows[1]


def what_others_see_rank(rank, world):
    """The integers that rank 1 gives and gets: its own have no noise, the sum has."""
    group = dist.group.WORLD.native
    layout = _tn.Layout([("w", torch.float32, (SIZE,))])
    count, width, sigma = _tn.dp_grid(layout, 1.0, 2.0)
    mine = torch.zeros(count, dtype=torch.int64)
    _tn.dp_to_grid(layout, torch.zeros(SIZE, dtype=torch.float32).view(torch.uint8), 1.0, 2.0, mine)
    if rank == 0:
        _tn.dp_add_noise(mine, sigma**2)
    group.allreduce([mine], "SUM").wait(None)
    return (mine.double().std() / sigma).item(), (mine.double() * width).std().item()


def test_the_sum_that_ranks_see_has_its_noise():
    for ratio, spread in run_world(what_others_see_rank, 2):
        assert ratio == pytest.approx(1, rel=0.05) and spread == pytest.approx(2.0, rel=0.05)


# ---- with a server ----------------------------------------------------------------------------------------------------


def test_local_noise_with_a_server_hides_examples_and_metrics(tmp_path):
    import sqlite3

    with Server(tmp_path, square(), "--rounds", "1", "--min-clients", "1") as server:
        local = federated.LocalDP(clip=0.5, epsilon=1.0)
        engine = federated.Engine(square(), train=adds(0.0, 77, loss=3.0), server=server.url(), client_id="a", progress=False, privacy=[local])
        history = in_threads(engine.participate)[0]
        assert history[0].epsilon == 1 and history[0].loss == 3.0
        assert server.process.wait(30) == 0
        delta = torch.cat([(server.model(1)[name] - server.model(0)[name]).flatten() for name in ("weight", "bias")])
    assert delta.std().item() == pytest.approx(3.730631635, rel=0.05)
    with sqlite3.connect(tmp_path / "state" / "state.db") as db:
        assert db.execute("SELECT examples, metrics FROM updates").fetchall() == [(1, "{}")]


# ---- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: federated.CentralDP(clip=0, noise=1), "clip=0"),
        (lambda: federated.CentralDP(clip=math.nan, noise=1), "clip=nan"),
        (lambda: federated.CentralDP(clip=1, noise=0), "sigma is 0"),
        (lambda: federated.CentralDP(clip=1, noise=1, delta=0), "delta is 0"),
        (lambda: federated.CentralDP(clip=1, noise=1, budget=1), "budget=1: one round spends epsilon 4.7"),
        (lambda: federated.CentralDP(clip=1, noise=1, quantile=1), "quantile=1"),
        (lambda: federated.CentralDP(clip=1, noise=1, denominator=-1), "denominator=-1"),
        (lambda: federated.LocalDP(clip=-1, epsilon=1), "clip=-1"),
        (lambda: federated.LocalDP(clip=1, epsilon=0), "epsilon is 0"),
        (lambda: federated.LocalDP(clip=1, epsilon=1, delta=2), "delta is 2"),
    ],
)
def test_bad_settings_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_what_the_engine_refuses():
    central, local = federated.CentralDP(clip=1, noise=1), federated.LocalDP(clip=1, epsilon=1)
    with pytest.raises(ValueError, match="torchnative-server --dp"):
        federated.Engine(square(), train=adds(0, 1), server="tcp://127.0.0.1:1", privacy=[central])
    with pytest.raises(ValueError, match="two kinds of noise"):
        federated.Engine(square(), rounds=1, train=adds(0, 1), privacy=[central, local])
    with pytest.raises(ValueError, match="noise is 0.01|sigma of the count"):  # one rank cannot hide in its own count
        noisy = federated.CentralDP(clip=1, noise=1, quantile=0.5)
        federated.Engine(square(), rounds=1, train=adds(0, 1), progress=False, privacy=[noisy]).participate()


def test_the_integers_must_be_integers():
    layout = _tn.Layout([("w", torch.float32, (4,))])
    block = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(ValueError, match="out must be a contiguous torch.int64 tensor; it is float32"):
        _tn.dp_to_grid(layout, block, 1.0, 1.0, torch.zeros(4))
    with pytest.raises(ValueError, match="the grid has 3 numbers, the model 4"):
        _tn.dp_to_grid(layout, block, 1.0, 1.0, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="variance is 0"):
        _tn.dp_add_noise(torch.zeros(3, dtype=torch.int64), 0.0)
