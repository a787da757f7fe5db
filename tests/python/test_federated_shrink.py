"""A federation over a process group that loses a rank: the round costs that rank's update and no more."""

import multiprocessing
import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from torchnative.nn import federated

REPEATS = int(os.environ.get("TN_TEST_REPEAT", "1"))
SIZE, ROUNDS = 4, 8


def _rank(rank, path, victim, when, pipe):
    torch.set_num_threads(1)
    dist.init_process_group("tn", store=dist.FileStore(path, SIZE), rank=rank, world_size=SIZE, timeout=timedelta(seconds=60))
    model = torch.nn.Linear(200, 300)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

    def train(model, round):
        if round == 3 and rank == victim and when == "training":
            os.kill(os.getpid(), signal.SIGKILL)
        if round == 3 and rank == victim:
            threading.Timer(when, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if round == ROUNDS and rank == victim:
            time.sleep(60)  # is killed in here at the latest
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 2.0**rank
        return federated.Update(num_examples=1, metrics={"loss": float(rank)})

    values = []
    engine = federated.Engine(model, rounds=ROUNDS, train=train, evaluate=lambda model, round: values.append(float(model.bias[0])))
    history = engine.participate()
    state = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    pipe.send((values, [record.cohort for record in history.rounds], [record.loss for record in history.rounds], state.unique().tolist(),
               dist.get_process_group_ranks(engine.group)))
    dist.destroy_process_group()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("when", ["training", "adding up"])
def test_a_killed_rank_costs_its_update_and_no_more(tmp_path, victim, when, repeat):
    """Each rank adds a power of two, so the model tells whose updates every round has counted."""
    context = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    moment = when if when == "training" else 0.0005 + repeat * 37 % 50 / 10000  # seconds into round 3, and perhaps some rounds later
    for rank in range(SIZE):
        ours, theirs = context.Pipe()
        ranks.append(context.Process(target=_rank, args=(rank, str(tmp_path / "store"), victim, moment, theirs), daemon=True))
        ranks[-1].start()
        theirs.close()
        pipes.append(ours)
    rest = [rank for rank in range(SIZE) if rank != victim]
    try:
        began = time.time()
        results = []
        for rank in rest:
            assert pipes[rank].poll(90), f"rank {rank} hangs"
            results.append(pipes[rank].recv())
            ranks[rank].join(30)
            assert ranks[rank].exitcode == 0
        ranks[victim].join(30)
        assert ranks[victim].exitcode == -signal.SIGKILL
        assert time.time() - began < 60
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()
    assert all(result == results[0] for result in results[1:])
    values, cohorts, losses, state, members = results[0]
    assert members == rest
    whole = cohorts.index(3)  # rounds that the victim took part in to the end
    assert whole == 2 if when == "training" else 2 <= whole < ROUNDS
    assert cohorts == [4] * whole + [3] * (ROUNDS - whole)
    steps = [sum(2.0**rank for rank in range(SIZE)) / 4] * whole + [sum(2.0**rank for rank in rest) / 3] * (ROUNDS - whole)
    expected = torch.tensor(steps, dtype=torch.float64).cumsum(0)
    assert torch.allclose(torch.tensor(values, dtype=torch.float64), expected, rtol=1e-5)
    assert len(state) == 1 and state[0] == values[-1]
    assert losses == [1.5] * whole + [sum(rest) / 3] * (ROUNDS - whole)
