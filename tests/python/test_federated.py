"""The Engine: world size 1, a process group, and the C server over a real socket."""

import copy
import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from torchnative.nn import federated
from worlds import run_world

TOP = Path(__file__).resolve().parents[2]
SERVER = TOP / "build" / "bin" / "torchnative-server"


def line(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2)


def adds(value: float, examples: int, **metrics):
    """A train function that moves every floating parameter by a constant: the expected mean can be written down."""

    def train(model, round):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += value
        return federated.Update(num_examples=examples, metrics=metrics)

    return train


def batches(n: int = 32, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    y = torch.randint(0, 2, (n,), generator=generator)
    return [(x[i : i + 8], y[i : i + 8]) for i in range(0, n, 8)]


# ---- world size 1 -----------------------------------------------------------------------------------------------------


def test_one_device_needs_no_set_up_and_trains():
    model, plain = line(), line()
    engine = federated.Engine(
        model, rounds=3, aggregator=federated.FedAvg(), data=batches(), loss=F.cross_entropy, optimizer=torch.optim.SGD
    )
    history = engine.participate()
    for _ in range(3):
        optimizer = torch.optim.SGD(plain.parameters())
        for x, y in batches():
            optimizer.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            optimizer.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)
    assert [record.round for record in history.rounds] == [1, 2, 3]
    assert all(record.cohort == 1 and record.examples == 32 and record.accepted for record in history)
    assert history[2].loss < history[0].loss
    assert json.loads(history.to_json())[1]["round"] == 2


def test_evaluate_and_callbacks_see_each_rounds_new_model():
    seen = []
    model = line()
    start = model.bias.detach().clone()
    engine = federated.Engine(
        model,
        rounds=2,
        train=adds(1.0, 5),
        evaluate=lambda model, round: {"shift": (model.bias.detach() - start).mean()},
        callbacks=[lambda engine, record: seen.append((record.round, round(record.metrics["shift"], 5)))],
    )
    engine.participate()
    assert seen == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    ),
)
def test_every_optimizer_class_works_as_a_local_step(name):
    model = line()
    if name == "SparseAdam":
        pytest.skip("needs sparse gradients, which a Linear layer does not give")
    if name == "Muon":  # takes matrices only
        kind = lambda parameters: torch.optim.Muon([p for p in parameters if p.ndim == 2])  # noqa: E731
    else:
        kind = getattr(torch.optim, name)
    before = copy.deepcopy(model.state_dict())
    federated.Engine(model, rounds=2, data=batches(), loss=F.cross_entropy, optimizer=kind).participate()
    assert not torch.equal(model.weight, before["weight"]) and torch.isfinite(model.weight).all()


def test_an_optimizer_instance_keeps_its_state_and_a_class_starts_anew():
    shared = line()
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.1, momentum=0.9)
    federated.Engine(shared, rounds=2, data=batches(), loss=F.cross_entropy, optimizer=optimizer).participate()
    anew = line()
    kind = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    federated.Engine(anew, rounds=2, data=batches(), loss=F.cross_entropy, optimizer=kind).participate()
    assert not torch.allclose(shared.weight, anew.weight)


def train_returning(value):
    def train(model, round):
        if isinstance(value, Exception):
            raise value
        return value

    return train


@pytest.mark.parametrize(
    "value, says",
    [
        (None, "returned NoneType"),
        ((1, {}), "returned tuple"),
        (federated.Update(0), "num_examples=0"),
        (federated.Update(-3), "num_examples=-3"),
        (federated.Update(True), "num_examples=True"),
        (federated.Update(2.5), "num_examples=2.5"),
        (federated.Update(3, {"loss": "low"}), "metric 'loss' is 'low'"),
        (ZeroDivisionError("by zero"), "raised ZeroDivisionError in round 1: by zero"),
    ],
)
def test_a_wrong_train_function_is_named_with_its_place(value, says):
    engine = federated.Engine(line(), rounds=1, train=train_returning(value))
    with pytest.raises(federated.TrainError) as caught:
        engine.participate()
    assert says in str(caught.value)
    assert "train_returning.<locals>.train (" in str(caught.value) and "test_federated.py:" in str(caught.value)


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ({}, ValueError, "rounds= is needed"),
        ({"rounds": 0}, ValueError, "rounds=0"),
        ({"rounds": 1}, ValueError, "give data="),
        ({"rounds": 1, "train": adds(0, 1), "data": []}, ValueError, "not both"),
        ({"rounds": 1, "data": [], "loss": None}, ValueError, "loss="),
        ({"rounds": 1, "data": [], "loss": F.mse_loss, "local_epochs": 0}, ValueError, "local_epochs=0"),
        ({"rounds": 1, "train": adds(0, 1), "aggregator": federated.FedAvg}, TypeError, "an instance"),
        ({"rounds": 1, "train": adds(0, 1), "selection": "uniform"}, NotImplementedError, "selection="),
        ({"rounds": 1, "train": adds(0, 1), "privacy": [1]}, TypeError, "privacy="),
        ({"rounds": 1, "train": adds(0, 1), "tls": "certs"}, TypeError, "federated.TLS"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments, error, says):
    with pytest.raises(error, match=says):
        federated.Engine(line(), **arguments)


def test_no_examples_is_an_error():
    with pytest.raises(federated.TrainError, match="no examples"):
        federated.Engine(line(), rounds=1, data=[], loss=F.cross_entropy).participate()


def test_a_second_participate_is_refused():
    engine = federated.Engine(line(), rounds=1, train=adds(0, 1))
    engine.participate()
    with pytest.raises(RuntimeError, match="before"):
        engine.participate()


def test_nan_alone_is_refused_and_the_model_is_unchanged():
    model = line()
    before = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match="NaN|nan|finite"):
        federated.Engine(model, rounds=1, train=adds(math.nan, 1)).participate()
    assert torch.equal(model.weight, before)


def test_progress_is_silent_in_a_pipe_and_shown_on_request():
    script = (
        "import torch, torch.nn.functional as F\nfrom torchnative.nn import federated\nimport sys\n"
        "m = torch.nn.Linear(2, 2)\nt = lambda m, r: federated.Update(4, {'loss': 0.5})\n"
        "federated.Engine(m, rounds=2, train=t, progress=None if sys.argv[1] == 'quiet' else True).participate()\n"
    )
    runs = [subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, timeout=120) for how in ("quiet", "shown")]
    assert runs[0].returncode == 0 and runs[0].stderr == "" and runs[0].stdout == ""
    assert "round 2/2  cohort 1  loss 0.5000" in runs[1].stderr and runs[1].stdout == ""


# ---- over a process group ---------------------------------------------------------------------------------------------


def mean_rank(rank, world):
    model = line(seed=rank)  # rank 0's starts
    start = line(seed=0)
    history = federated.Engine(model, rounds=2, train=adds(float(rank + 1), 2 * rank + 1, loss=float(rank))).participate()
    weights = [2 * r + 1 for r in range(world)]
    step = sum(w * (r + 1) for r, w in enumerate(weights)) / sum(weights)
    torch.testing.assert_close(model.weight, start.weight + 2 * step)
    loss = sum(w * r for r, w in enumerate(weights)) / sum(weights)
    assert [record.cohort for record in history] == [world, world]
    assert abs(history[0].loss - loss) < 1e-12
    return model.weight.detach().numpy().tobytes()


@pytest.mark.parametrize("world", [2, 3])
def test_the_mean_over_a_group_is_the_weighted_mean_with_the_same_bits(world):
    assert len(set(run_world(mean_rank, world))) == 1


def batch_norm_rank(rank, world):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    examples = [3, 7, 90][rank]
    steps = [1, 5, 2][rank]

    def train(model, round):
        model.train()
        torch.manual_seed(100 + rank)
        for _ in range(steps):
            model(torch.randn(examples, 4) + rank)
        return federated.Update(examples)

    local = copy.deepcopy(model)
    train(local, 1)
    federated.Engine(model, rounds=1, train=train).participate()
    state = model.state_dict()
    return {
        "mean": state["0.running_mean"].tolist(),
        "local": local.state_dict()["0.running_mean"].tolist(),
        "count": int(state["0.num_batches_tracked"]),
        "dtypes": [str(value.dtype) for value in state.values()],
    }


def test_buffers_floating_ones_are_averaged_and_counters_take_the_maximum():
    rows = run_world(batch_norm_rank, 3)
    expected = [sum(w * row["local"][i] for w, row in zip((3, 7, 90), rows)) / 100 for i in range(4)]
    for row in rows:
        assert row["mean"] == pytest.approx(expected, abs=1e-6)
        assert row["count"] == 5
        assert row["dtypes"] == ["torch.float32"] * 4 + ["torch.int64"] + ["torch.float32"] * 2


def differing_rank(rank, world):
    model = torch.nn.Linear(3, 2 if rank != 1 else 4)
    federated.Engine(model, rounds=1, train=adds(1.0, 1)).participate()


def test_a_model_of_another_shape_is_named_on_every_rank():
    rows = run_world(differing_rank, 3, errors=True)
    assert "bias is float32[2] in the model of rank 0 and float32[4] in that of rank 1" in rows[1]
    assert "the model of rank 1 differs" in rows[0] and "the model of rank 1 differs" in rows[2]


def nan_rank(rank, world):
    model = line()
    start = line().weight.detach()
    history = federated.Engine(model, rounds=1, train=adds(math.nan if rank == 1 else float(rank), 1)).participate()
    torch.testing.assert_close(model.weight.detach(), start + 1.0)  # the mean of 0 and 2
    return history[0].accepted, history[0].refusal, history[0].cohort


def test_a_rank_with_nan_is_refused_by_name_and_the_round_goes_on():
    rows = run_world(nan_rank, 3)
    assert [row[0] for row in rows] == [True, False, True]
    assert [row[2] for row in rows] == [2, 2, 2]
    assert "rank 1" in rows[1][1] and ("weight" in rows[1][1] or "bias" in rows[1][1])


# ---- through the server -----------------------------------------------------------------------------------------------


class Server:
    """The real server on a port of the kernel's choice, ended with the test."""

    def __init__(self, folder: Path, model: torch.nn.Module, *flags: str) -> None:
        self.state = folder / "state"
        initial = folder / "initial.safetensors"
        if not initial.exists():
            save_file(model.state_dict(), initial)
        self.log = open(folder / "server.log", "ab")
        command = [SERVER, "--listen", "tcp://127.0.0.1:0", "--state", self.state, "--model", initial, *flags]
        self.process = subprocess.Popen([str(part) for part in command], stderr=self.log, stdout=self.log, stdin=subprocess.DEVNULL)

    def url(self) -> str:
        deadline = time.monotonic() + 30
        while not (self.state / "endpoint").exists():
            assert self.process.poll() is None and time.monotonic() < deadline, Path(self.log.name).read_text()
            time.sleep(0.01)
        return (self.state / "endpoint").read_text().split()[0]

    def model(self, number: int) -> dict:
        return load_file(self.state / "models" / f"round-{number:06d}.safetensors")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


def in_threads(*functions) -> list:
    """Runs the functions at once; returns what each returned or raised."""
    results: list = [None] * len(functions)

    def call(index: int) -> None:
        try:
            results[index] = functions[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive(), "a client hangs"
    return results


def client(url: str, model: torch.nn.Module, name: str, train, **more):
    def run():
        return federated.Engine(model, train=train, server=url, client_id=name, **more).participate()

    return run


def test_two_clients_through_the_server_give_the_weighted_mean(tmp_path):
    start = line()
    models = [line(seed=5), line(seed=6)]
    with Server(tmp_path, start, "--rounds", "2", "--min-clients", "2") as server:
        url = server.url()
        results = in_threads(
            client(url, models[0], "a", adds(1.0, 1, loss=4.0), evaluate=lambda model, round: {"bias": model.bias[0]}),
            client(url, models[1], "b", adds(2.0, 3, loss=8.0), rounds=2, aggregator=federated.FedAvg()),
        )
        for history in results:
            assert isinstance(history, federated.History), history
            assert [record.round for record in history] == [1, 2]
            assert all(record.cohort == 2 and record.accepted for record in history)
        assert server.process.wait(30) == 0
        step = (1.0 * 1 + 2.0 * 3) / 4
        final = server.model(2)
        torch.testing.assert_close(final["weight"], start.weight.detach() + 2 * step)
        for model in models:
            assert torch.equal(model.weight, final["weight"])
        assert results[0][1].metrics["bias"] == pytest.approx(float(final["bias"][0]))
        assert torch.equal(server.model(0)["weight"], start.weight)


def test_what_engine_and_server_were_told_must_agree(tmp_path):
    with Server(tmp_path, line(), "--rounds", "2", "--min-clients", "1") as server:
        url = server.url()
        (error,) = in_threads(client(url, line(), "a", adds(1.0, 1), rounds=7))
        assert isinstance(error, ValueError) and "rounds=7" in str(error) and "2" in str(error)
        (error,) = in_threads(client(url, torch.nn.Linear(3, 9), "a", adds(1.0, 1)))
        assert isinstance(error, ValueError) and "float32[9]" in str(error) and "float32[2]" in str(error)


def test_a_client_whose_train_function_fails_leaves_and_the_round_goes_on(tmp_path):
    start = line()
    with Server(tmp_path, start, "--rounds", "1", "--start-clients", "2", "--min-clients", "1") as server:
        url = server.url()
        model = line()
        results = in_threads(client(url, model, "good", adds(1.0, 1)), client(url, line(), "bad", train_returning(None)))
        assert isinstance(results[0], federated.History) and results[0][0].accepted
        assert isinstance(results[1], federated.TrainError)
        torch.testing.assert_close(model.weight, start.weight + 1.0)


def test_a_client_with_nan_is_refused_by_name_and_goes_on(tmp_path):
    start = line()
    with Server(tmp_path, start, "--rounds", "1", "--start-clients", "2", "--min-clients", "1") as server:
        url = server.url()
        good, bad = line(), line()
        results = in_threads(client(url, good, "good", adds(1.0, 1)), client(url, bad, "bad", adds(math.inf, 1)))
        assert all(isinstance(history, federated.History) for history in results), results
        assert not results[1][0].accepted and ("weight" in results[1][0].refusal or "bias" in results[1][0].refusal)
        torch.testing.assert_close(good.weight, start.weight + 1.0)
        assert torch.equal(good.weight, bad.weight)


def test_an_unreachable_server_is_named():
    engine = federated.Engine(line(), train=adds(1.0, 1), server="tcp://127.0.0.1:1", connect_timeout=0.5)
    with pytest.raises((ConnectionError, TimeoutError), match="127.0.0.1:1"):
        engine.participate()


def test_missing_tls_files_are_named(tmp_path):
    tls = federated.TLS.from_folder(tmp_path, "client-1")
    with pytest.raises(FileNotFoundError, match="client-1.pem"):
        federated.Engine(line(), train=adds(1.0, 1), server="tls+tcp://localhost:1", tls=tls).participate()
    with pytest.raises(ValueError, match="tls="):
        federated.Engine(line(), train=adds(1.0, 1), server="tls+tcp://localhost:1").participate()
