"""The local step: given whole by ``train=``, or made from ``data``, ``loss``, ``optimizer`` and ``local_epochs``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

MAX_EXAMPLES = 2**40  # the protocol's limit on an update's weight


class Round(int):
    """The number of a round, 1, 2, ...: an int that also carries what the server sends with it.

    Attributes:
        params: hyper-parameters of this round, a dict of floats; empty unless the server sends some.
        attempt: 0, or more when the round had to be started again.
        deadline: seconds that this round may take; None over a group.
    """

    params: dict[str, float]
    attempt: int
    deadline: float | None

    def __new__(cls, number: int, params: Mapping | None = None, attempt: int = 0, deadline: float | None = None):
        self = super().__new__(cls, number)
        self.params = dict(params or {})
        self.attempt = attempt
        self.deadline = deadline
        return self


@dataclass
class Update:
    """What a ``train`` function returns.

    Args:
        num_examples: how many examples it trained on: the weight of this update in the average; at least 1.
        metrics: floats to report. "loss" is shown and averaged.
    """

    num_examples: int
    metrics: dict[str, float] = field(default_factory=dict)


class TrainError(RuntimeError):
    """A user's function did not do what the Engine needs; the text names the function, its file and line."""


def where(function: Callable) -> str:
    """ "train (client.py:12)" for messages."""
    target = inspect.unwrap(getattr(function, "func", function))
    name = getattr(target, "__qualname__", None) or type(target).__name__
    try:
        code = target.__code__ if hasattr(target, "__code__") else type(target).__call__.__code__
        return f"{name} ({code.co_filename}:{code.co_firstlineno})"
    except AttributeError:
        return name


def run_train(train: Callable, model: torch.nn.Module, round: Round) -> Update:
    """Calls a ``train`` function and checks what it returned."""
    try:
        update = train(model, round)
    except Exception as error:
        raise TrainError(f"train function {where(train)} raised {type(error).__name__} in round {round}: {error}") from error
    if not isinstance(update, Update):
        raise TrainError(
            f"train function {where(train)} returned {type(update).__name__} in round {round}; "
            "return federated.Update(num_examples=n, metrics={...})"
        )
    count = update.num_examples
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_EXAMPLES:
        raise TrainError(
            f"train function {where(train)} returned num_examples={count!r} in round {round}; "
            "an integer of at least 1 is needed, since it is the weight of this update"
        )
    return Update(count, checked_metrics(update.metrics, train))


def checked_metrics(metrics: Mapping | None, function: Callable) -> dict[str, float]:
    """Metrics as a dict of floats, or a TrainError that names the function and the entry."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TrainError(f"{where(function)} gave metrics of type {type(metrics).__name__}; a dict of floats is needed")
    checked = {}
    for name, value in metrics.items():
        try:
            checked[str(name)] = float(value)
        except (TypeError, ValueError) as error:
            raise TrainError(f"{where(function)}: metric {name!r} is {value!r}, not a number") from error
    return checked


class LocalTraining:
    """Plain epochs over ``data``: zero_grad, forward, loss, backward, step.

    ``data`` is an iterable of (input, target) batches, or a callable that takes the :class:`Round` and returns one.
    ``optimizer`` is a class or callable that takes the parameters: it is made anew each round, so its state (momentum)
    starts at zero each round. An optimizer *instance* is used as it is, and keeps its state between rounds. The server's
    hyper-parameters "lr" and "local_epochs", when sent, win over the local ones.
    """

    def __init__(self, data, loss: Callable, optimizer, local_epochs: int) -> None:
        if loss is None or not callable(loss):
            raise ValueError("loss= must be a callable loss(output, target), such as torch.nn.functional.cross_entropy")
        if not isinstance(optimizer, torch.optim.Optimizer) and not callable(optimizer):
            raise ValueError(
                "optimizer= must be a torch.optim class, a callable that takes the parameters, or an optimizer instance"
            )
        if isinstance(local_epochs, bool) or not isinstance(local_epochs, int) or local_epochs < 1:
            raise ValueError(f"local_epochs={local_epochs!r}; an integer of at least 1 is needed")
        if not callable(data) and not hasattr(data, "__iter__"):
            raise ValueError("data= must be an iterable of (input, target) batches, or a callable that takes the round")
        self.data, self.loss, self.optimizer, self.local_epochs = data, loss, optimizer, local_epochs

    def __call__(self, model: torch.nn.Module, round: Round) -> Update:
        data = self.data(round) if callable(self.data) else self.data
        optimizer = self.optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(model.parameters())
        if "lr" in round.params:
            for group in optimizer.param_groups:
                group["lr"] = round.params["lr"]
        epochs = int(round.params.get("local_epochs", self.local_epochs))
        model.train()
        seen, total = 0, 0.0
        for epoch in range(epochs):
            for batch in data:
                inputs, targets = self.split(batch)

                def closure():
                    optimizer.zero_grad()
                    value = self.loss(model(inputs), targets)
                    value.backward()
                    return value

                value = optimizer.step(closure)  # with a closure, so that LBFGS works as the others do
                count = len(targets)
                seen += count
                total += float(value.detach()) * count
        if seen == 0:
            raise ValueError("data gave no examples")
        return Update(seen // epochs, {"loss": total / seen if math.isfinite(total) else math.nan})

    @staticmethod
    def split(batch):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(
                f"data gave a batch of type {type(batch).__name__}; (input, target) pairs are needed, or give train= instead"
            )
        return batch
