"""The two ways to meet: a process group, or the aggregation server. The Engine drives either through one small interface.

A channel carries blocks: the model's tensors packed one behind another in the order of the layout, as a uint8 tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchnative import _tn
from torchnative._torch import torch_dtype

from .training import Round


@dataclass
class Task:
    """A round to take part in."""

    round: Round
    cohort: int
    member: bool = True


@dataclass
class Outcome:
    """What became of this participant's update; ``loss`` is the cohort's, None where only the server knows it."""

    accepted: bool
    refusal: str | None = None
    cohort: int | None = None
    loss: float | None = None


class GroupChannel:
    """Rounds over a process group: rank 0's model starts, every rank trains, the deltas meet in one weighted all-reduce."""

    def __init__(self, group, rounds: int) -> None:
        self.group, self.rounds = group, rounds
        self.done = 0
        self.tensor_bytes = 0

    def join(self, layout: "_tn.Layout", block: torch.Tensor) -> None:
        """Compares the models' shapes, then gives every rank rank 0's values (in ``block``)."""
        self.layout, self.block = layout, block
        self.compare(layout)
        self.group.broadcast([block], 0).wait(None)
        self.tensor_bytes += layout.nbytes

    def compare(self, layout: "_tn.Layout") -> None:
        """Every rank learns whether all hold the same names, dtypes and shapes; all raise when one differs."""
        mine = json.dumps([entry[:3] for entry in layout.entries]).encode()
        size = torch.tensor([len(mine)], dtype=torch.int64)
        self.group.broadcast([size], 0).wait(None)
        theirs = torch.zeros(int(size), dtype=torch.uint8)
        if self.group.rank == 0:
            theirs.copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        self.group.broadcast([theirs], 0).wait(None)
        problem = None
        try:
            first = _tn.Layout(json.loads(bytes(theirs.tolist())))
            first.same(layout, "the model of rank 0", f"that of rank {self.group.rank}")
        except ValueError as error:
            problem = error
        bad = torch.tensor([self.group.rank if problem else self.group.size], dtype=torch.int64)
        self.group.allreduce([bad], "MIN").wait(None)
        if problem is not None:
            raise problem
        if int(bad) < self.group.size:
            raise ValueError(f"the model of rank {int(bad)} differs from that of rank 0 in names, shapes or dtypes; see its own error")

    def next(self) -> Task | None:
        if self.done == self.rounds:
            return None
        return Task(Round(self.done + 1), self.group.size)

    def submit(self, delta: torch.Tensor, examples: int, metrics: dict[str, float], refusal: str | None) -> Outcome:
        """Adds everybody's deltas to the block. A rank with ``refusal`` takes part with weight zero."""
        weight = 0 if refusal else examples
        loss = metrics.get("loss", math.nan)
        facts = torch.tensor([weight, weight if math.isfinite(loss) else 0, loss if math.isfinite(loss) else 0.0], dtype=torch.float64)
        everyone = [torch.empty_like(facts) for _ in range(self.group.size)]
        self.group.allgather(everyone, facts).wait(None)
        table = torch.stack(everyone).tolist()
        cohort = sum(1 for row in table if row[0] > 0)
        if cohort == 0:
            return Outcome(False, refusal or "no rank had an update to give", 0)
        if refusal:
            delta.zero_()
        for number, offset, nbytes in self.layout.runs():
            dtype = torch_dtype(number)
            part = delta[offset : offset + nbytes].view(dtype)
            if dtype.is_floating_point or dtype.is_complex:
                self.group.allreduce([part], "WMEAN", weight=float(weight)).wait(None)
            else:
                self.group.allreduce([part], "MAX").wait(None)
        self.layout.apply(self.block, delta)
        self.tensor_bytes += self.layout.nbytes
        self.done += 1
        weights = sum(row[1] for row in table)
        mean = sum(row[1] * row[2] for row in table) / weights if weights else None
        return Outcome(not refusal, refusal, cohort, mean)

    def traffic(self) -> tuple[int, int]:
        return self.tensor_bytes, self.tensor_bytes

    def close(self) -> None:
        pass


class ServerChannel:
    """Rounds through the aggregation server: it chooses, sends the model, takes the delta."""

    def __init__(self, client: "_tn.Client", tell: Callable[[str], None]) -> None:
        self.client, self.tell = client, tell

    def join(self, layout: "_tn.Layout", block: torch.Tensor) -> None:
        self.block = block
        self.job = self.client.join(layout)

    def next(self) -> Task | None:
        """Waits for a task and brings ``block`` to its model; None when the job is done (``block`` is then the final model)."""
        while (task := self.client.next(1.0)) is None:
            pass
        if task["kind"] == "failed":
            raise RuntimeError(f"the server ended the job: {task['text']}")
        self.client.model(self.block)
        if task["kind"] == "done":
            return None
        return Task(Round(task["round"], task["params"], task["attempt"], task["deadline"]), task["cohort"])

    def submit(self, delta: torch.Tensor, examples: int, metrics: dict[str, float], refusal: str | None) -> Outcome:
        try:
            self.client.submit(delta, examples, metrics)
        except _tn.Refused as error:
            return Outcome(False, str(error))
        return Outcome(True)

    def traffic(self) -> tuple[int, int]:
        return self.client.bytes_sent, self.client.bytes_received

    def close(self) -> None:
        self.client.close()
