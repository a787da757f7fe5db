"""Central differential privacy at the real server: what it adds, what it writes down, when it stops."""

import json
import math
import re
import sqlite3
import subprocess
from pathlib import Path

import pytest
import torch
from test_digits import run_digits
from test_federated import SERVER, Server, adds, in_threads
from test_privacy import ctl

from torchnative import privacy
from torchnative.nn import federated

SIZE = 64 * 64 + 64


def square() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(64, 64)


def engine(server: Server, name: str, train) -> federated.Engine:
    return federated.Engine(square(), train=train, server=server.url(), client_id=name, progress=False)


def federate(server: Server, *trains) -> list:
    engines = [engine(server, f"client-{k}", train) for k, train in enumerate(trains)]
    outcomes = in_threads(*(e.participate for e in engines))
    assert all(isinstance(outcome, federated.History) for outcome in outcomes), outcomes
    assert server.process.wait(30) == 0, Path(server.log.name).read_text()
    return engines


def ledger(folder: Path) -> list:
    with sqlite3.connect(folder / "state" / "state.db") as db:
        return db.execute("SELECT round, q, noise, clip, next_clip, epsilon, delta FROM privacy ORDER BY entry").fetchall()


def move(server: Server, before: int, after: int) -> torch.Tensor:
    one, two = server.model(before), server.model(after)
    return torch.cat([(two[name] - one[name]).flatten().double() for name in sorted(one)])


def test_updates_are_clipped_and_count_the_same_whatever_their_examples(tmp_path):
    flags = ["--rounds", "1", "--min-clients", "3", "--dp", "clip=2,noise=0.01"]
    with Server(tmp_path, square(), *flags) as server:
        federate(server, adds(0.01, 1), adds(-0.02, 1000), adds(5.0, 10))
        each = 2 / math.sqrt(SIZE)  # what is left of the third: its norm is 5 * sqrt(SIZE)
        moved = move(server, 0, 1)
    assert moved.mean().item() == pytest.approx((0.01 - 0.02 + each) / 3, abs=5 * 0.02 / 3 / math.sqrt(SIZE))
    assert moved.std().item() == pytest.approx(0.01 * 2 / 3, rel=0.05)


def test_noise_and_ledger(tmp_path):
    flags = ["--rounds", "3", "--min-clients", "2", "--dp", "clip=0.5,noise=2,delta=1e-6,denominator=4"]
    with Server(tmp_path, square(), *flags) as server:
        engines = federate(server, adds(0.0, 1), adds(0.0, 1))
        for number in range(3):
            assert move(server, number, number + 1).std().item() == pytest.approx(2 * 0.5 / 4, rel=0.05)
        final = server.model(3)
        assert all(torch.equal(e.model.state_dict()[name], final[name]) for e in engines for name in final)
        assert not torch.equal(move(server, 0, 1), move(server, 1, 2))
    rows = ledger(tmp_path)
    assert [row[0] for row in rows] == [1, 2, 3]
    for steps, (_, q, noise, clip, next_clip, epsilon, delta) in enumerate(rows, 1):
        assert (q, noise, clip, next_clip, delta) == (1, 2, 0.5, 0.5, 1e-6)
        assert epsilon == pytest.approx(privacy.epsilon(q=1, sigma=2, steps=steps, delta=1e-6), rel=1e-12)


def test_the_job_ends_before_the_budget_would_be_exceeded(tmp_path):
    spent = [privacy.epsilon(q=1, sigma=3, steps=steps, delta=1e-5) for steps in range(5)]
    flags = ["--rounds", "10", "--min-clients", "2", "--dp", "clip=1,noise=3"]
    with Server(tmp_path, square(), *flags, "--dp-budget", str(spent[3] + 1e-6)) as server:
        engines = federate(server, adds(0.1, 1), adds(0.1, 1))
        assert [len(e.history) for e in engines] == [3, 3]
        assert "the privacy budget is spent: one more round would bring epsilon to" in Path(server.log.name).read_text()
        final = server.model(3)
        assert all(torch.equal(e.model.state_dict()[name], final[name]) for e in engines for name in final)
    with Server(tmp_path, square(), *flags, "--dp-budget", str(spent[3] + 1e-6)) as server:  # it knows it
        assert server.process.wait(30) == 0
    assert len(ledger(tmp_path)) == 3
    told = json.loads(ctl("ledger", "--state", tmp_path / "state", "--json").stdout)
    assert told == {"epsilon": pytest.approx(spent[3], rel=1e-8), "delta": 1e-5, "releases": 3, "round": 3, "clip": 1}
    with Server(tmp_path, square(), *flags, "--dp-budget", str(spent[4] + 1e-6)) as server:  # one more is granted
        assert [len(e.history) for e in federate(server, adds(0.1, 1), adds(0.1, 1))] == [1, 1]
    rows = ledger(tmp_path)
    assert [row[0] for row in rows] == [1, 2, 3, 4] and rows[-1][5] == pytest.approx(spent[4], rel=1e-12)


def test_what_is_not_in_the_ledger_is_not_released(tmp_path):
    with Server(tmp_path, square(), "--rounds", "1", "--min-clients", "1", "--dp", "clip=1,noise=1") as server:
        server.url()
        with sqlite3.connect(tmp_path / "state" / "state.db") as db:
            db.execute("CREATE TRIGGER full BEFORE INSERT ON privacy BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
        outcome = in_threads(engine(server, "one", adds(1.0, 1)).participate)[0]
        assert isinstance(outcome, RuntimeError)
        assert server.process.wait(30) == 1
        assert "the disk is full" in Path(server.log.name).read_text()
        assert [path.name for path in (tmp_path / "state" / "models").iterdir()] == ["round-000000.safetensors"]


def test_a_round_that_is_made_again_is_paid_for_again(tmp_path):
    """The server dies between the ledger's row and the round's record, comes back, and commits the updates that it had acknowledged."""
    database = tmp_path / "state" / "state.db"
    flags = ["--rounds", "1", "--min-clients", "1", "--dp", "clip=1,noise=3"]
    with Server(tmp_path, square(), *flags) as server:
        server.url()
        with sqlite3.connect(database) as db:
            db.execute("CREATE TRIGGER full BEFORE UPDATE ON rounds BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
        in_threads(engine(server, "one", adds(1.0, 1)).participate)
        assert server.process.wait(30) == 1
    assert [row[0] for row in ledger(tmp_path)] == [1]
    with sqlite3.connect(database) as db:
        db.execute("DROP TRIGGER full")
    with Server(tmp_path, square(), *flags, "--dp-budget", "100") as server:
        history = in_threads(engine(server, "one", adds(1.0, 1)).participate)[0]
        assert len(history) == 0, Path(server.log.name).read_text()  # told that the job is done
    rows = ledger(tmp_path)
    assert [row[0] for row in rows] == [1, 1]
    assert rows[1][5] == pytest.approx(privacy.epsilon(q=1, sigma=3, steps=2, delta=1e-5), rel=1e-12)


@pytest.mark.parametrize("value, direction", [(1.0, 1), (1e-6, -1)])
def test_the_clip_follows_the_updates(tmp_path, value, direction):
    flags = ["--rounds", "4", "--min-clients", "3", "--dp", "clip=0.1,noise=0.01,quantile=0.5"]
    with Server(tmp_path, square(), *flags) as server:
        federate(server, adds(value, 1), adds(value, 1), adds(value, 1))
    rows = ledger(tmp_path)
    for (_, _, noise, clip, next_clip, _, _), following in zip(rows, rows[1:] + [None]):
        assert noise == 0.01 and (following is None or following[3] == next_clip)
        assert math.log(next_clip / clip) * direction == pytest.approx(0.1, abs=0.06)  # rate .2, share 0 or 1


def test_a_job_goes_on_with_the_privacy_it_was_begun_with(tmp_path):
    with Server(tmp_path, square(), "--rounds", "1", "--min-clients", "1", "--dp", "clip=1,noise=1") as server:
        federate(server, adds(1.0, 1))
    for flags, text in (
        ([], "--dp none: the job in --state"),
        (["--dp", "clip=1,noise=0.5"], "was begun with clip=1,noise=1"),
    ):
        with Server(tmp_path, square(), "--rounds", "2", *flags) as server:
            assert server.process.wait(30) != 0
            assert text in Path(server.log.name).read_text()
    plain = tmp_path / "plain"
    plain.mkdir()
    with Server(plain, square(), "--rounds", "1", "--min-clients", "1") as server:
        federate(server, adds(1.0, 1))
    with Server(plain, square(), "--rounds", "2", "--dp", "clip=1,noise=1") as server:
        assert server.process.wait(30) != 0
        assert "was begun with none" in Path(server.log.name).read_text()


def test_a_ledger_that_is_not_there_is_named(tmp_path):
    done = ctl("ledger", "--state", tmp_path)
    assert done.returncode == 1 and "state.db cannot be opened" in done.stderr
    with Server(tmp_path, square(), "--rounds", "1") as server:
        server.url()
        done = ctl("ledger", "--state", tmp_path / "state")
        assert done.returncode == 1 and "its job was begun without --dp" in done.stderr


@pytest.mark.parametrize(
    "flags, text",
    [
        (["--dp", "noise=1"], "clip is missing"),
        (["--dp", "clip=1"], "noise is missing"),
        (["--dp", "clip=1,noise=1,sigma=2"], 'there is no "sigma"'),
        (["--dp", "clip=1,noise=1,clip=2"], "clip is given twice"),
        (["--dp", "clip=1,noise=x"], "noise=x is no number"),
        (["--dp", "clip=1,noise="], "noise needs a number"),
        (["--dp", "clip=1,noise"], "noise needs a number"),
        (["--dp", "clip=1,noise=nan"], "sigma is"),
        (["--dp", "clip=0,noise=1"], "clip=0"),
        (["--dp", "clip=nan,noise=1"], "clip="),
        (["--dp", "clip=1,noise=0"], "sigma is 0"),
        (["--dp", "clip=1,noise=1,delta=1"], "delta is 1"),
        (["--dp", "clip=1,noise=1,denominator=0"], "denominator=0"),
        (["--dp", "clip=1,noise=1,quantile=1.5"], "quantile is 1.5"),
        (["--dp", "clip=1,noise=1,quantile=0.5"], "take more clients a round"),
        (["--dp", ""], "--dp"),
        (["--dp-budget", "1"], "--dp-budget needs --dp"),
        (["--dp", "clip=1,noise=1", "--dp-budget", "1"], "one round spends epsilon 4.7"),
    ],
)
def test_wrong_settings_are_named(tmp_path, flags, text):
    command = [SERVER, "--listen", "tcp://127.0.0.1:0", "--state", tmp_path / "state", "--rounds", "1", "--check", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and text in done.stderr, done.stderr


def test_the_main_job_with_noise(tmp_path):
    text, _ = run_digits(tmp_path / "digits", "--rounds", "8", "--dp", "clip=1,noise=0.2,delta=1e-6")
    match = re.search(r"^result: accuracy=(\S+) reference=\S+ centralised=\S+ epsilon=(\S+) delta=1e-06 rounds=8 clients=8 ", text, re.MULTILINE)
    assert match and float(match[1]) > 0.6, text
    assert float(match[2]) == pytest.approx(privacy.epsilon(q=1, sigma=0.2, steps=8, delta=1e-6), rel=1e-3)
