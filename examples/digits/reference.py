"""What the federation is compared with: the same computation in one process, in plain torch, with nothing of torchnative."""

import copy

import torch
import torch.nn.functional as F

import task


def train(model: torch.nn.Module, batches_of_epoch, epochs: int) -> None:
    """Plain SGD over the same batches in each epoch."""
    optimizer = task.optimizer(model.parameters())
    model.train()
    for _ in range(epochs):
        for inputs, targets in batches_of_epoch:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


def federation(cohorts: list[list[int]], clients: int) -> torch.nn.Module:
    """Federated averaging over the given cohorts: each round's model is the mean of its clients' weights, weighted by their
    numbers of examples, in float64."""
    model = task.make_model()
    for number, cohort in enumerate(cohorts, start=1):
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in model.state_dict().items()}
        examples = 0
        for client in sorted(cohort):
            x, y = task.examples(client, clients)
            local = copy.deepcopy(model)
            train(local, task.batches(x, y, client, number), task.LOCAL_EPOCHS)
            for name, value in local.state_dict().items():
                total[name] += len(y) * value.double()
            examples += len(y)
        model.load_state_dict({name: (value / examples).float() for name, value in total.items()})
    return model


def centralised(rounds: int) -> torch.nn.Module:
    """The same number of epochs with all examples in one place."""
    x, y, _, _ = task.load()
    model = task.make_model()
    for number in range(1, rounds + 1):
        train(model, task.batches(x, y, 0, number), task.LOCAL_EPOCHS)
    return model
