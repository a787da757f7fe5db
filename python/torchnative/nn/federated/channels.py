"""The two ways to meet: a process group, or the aggregation server. The Engine drives either through one small interface.

A channel carries blocks: the model's tensors packed one behind another in the order of the layout, as a uint8 tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

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
    """Rounds over a process group: rank 0's model starts, every rank trains, the deltas meet in one weighted all-reduce.

    A rank that is lost costs the round its update and no more: the others shrink the group and add up what they have. ``members`` is the
    ProcessGroupTN of ``group``, None for a participant alone; ``shrunk`` is told the one that takes its place.
    """

    settings = "privacy=[]"  # what all ranks must have been told alike, for messages

    def __init__(self, group, rounds: int, members=None, shrunk: Callable[[object, str], None] | None = None) -> None:
        self.group, self.rounds = group, rounds
        self.members, self.shrunk = members, shrunk
        self.done = 0
        self.tensor_bytes = 0

    def join(self, layout: "_tn.Layout", block: torch.Tensor) -> None:
        """Compares the models' shapes, then gives every rank rank 0's values (in ``block``)."""
        self.layout, self.block = layout, block
        self.compare(layout)
        self.group.broadcast([block], 0).wait(None)
        self.tensor_bytes += layout.nbytes

    def compare(self, layout: "_tn.Layout") -> None:
        """Every rank learns whether all hold the same names, dtypes and shapes, and the same settings; all raise when one differs."""
        mine = json.dumps([self.settings, [entry[:3] for entry in layout.entries]]).encode()
        size = torch.tensor([len(mine)], dtype=torch.int64)
        self.group.broadcast([size], 0).wait(None)
        theirs = torch.zeros(int(size), dtype=torch.uint8)
        if self.group.rank == 0:
            theirs.copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        self.group.broadcast([theirs], 0).wait(None)
        problem = None
        try:
            settings, entries = json.loads(bytes(theirs.tolist()))
            if settings != self.settings:
                raise ValueError(f"rank 0 was told {settings}, rank {self.group.rank} {self.settings}; they must be told the same")
            first = _tn.Layout(entries)
            first.same(layout, "the model of rank 0", f"that of rank {self.group.rank}")
        except ValueError as error:
            problem = error
        bad = torch.tensor([self.group.rank if problem else self.group.size], dtype=torch.int64)
        self.group.allreduce([bad], "MIN").wait(None)
        if problem is not None:
            raise problem
        if int(bad) < self.group.size:
            raise ValueError(
                f"the model of rank {int(bad)} differs from that of rank 0 in names, shapes or dtypes, or its settings do; see its own error"
            )

    def next(self) -> Task | None:
        if self.done == self.rounds:
            return None
        return Task(Round(self.done + 1), self.group.size)

    def submit(self, delta: torch.Tensor, examples: int, metrics: dict[str, float], refusal: str | None) -> Outcome:
        """Adds everybody's deltas to the block. A rank with ``refusal`` takes part with weight zero."""
        before, table = self.done, []
        while True:
            try:
                if self.done == before:  # not so if the others had all they needed before a rank was lost
                    self._add_up(delta, examples, metrics, refusal, table)
                break
            except (ConnectionError, TimeoutError) as error:
                if self.members is None:
                    raise
                self._go_on(str(error))
        cohort = sum(1 for row in table if row[0] > 0)
        if cohort == 0:
            return Outcome(False, refusal or "no rank had an update to give", 0)
        weights = sum(row[1] for row in table)
        mean = sum(row[1] * row[2] for row in table) / weights if weights else None
        return Outcome(not refusal, refusal, cohort, mean)

    def _add_up(self, delta: torch.Tensor, examples: int, metrics: dict[str, float], refusal: str | None, table: list) -> None:
        """One attempt. ``table`` gets everybody's weights and losses; the block changes only at the end."""
        weight = 0 if refusal else examples
        loss = metrics.get("loss", math.nan)
        facts = torch.tensor([weight, weight if math.isfinite(loss) else 0, loss if math.isfinite(loss) else 0.0], dtype=torch.float64)
        everyone = [torch.empty_like(facts) for _ in range(self.group.size)]
        self.group.allgather(everyone, facts).wait(None)
        table[:] = torch.stack(everyone).tolist()
        if not any(row[0] > 0 for row in table):
            return
        total = torch.zeros_like(delta) if refusal else delta.clone()  # our own is still needed if this fails
        for number, offset, nbytes in self.layout.runs():
            dtype = torch_dtype(number)
            part = total[offset : offset + nbytes].view(dtype)
            if dtype.is_floating_point or dtype.is_complex:
                self.group.allreduce([part], "WMEAN", weight=float(weight)).wait(None)
            else:
                self.group.allreduce([part], "MAX").wait(None)
        self.layout.apply(self.block, total)
        self.tensor_bytes += self.layout.nbytes
        self.done += 1

    def _go_on(self, reason: str) -> None:
        """A group of those who are left, all of them at the same round."""
        from torchnative import distributed

        while True:
            # Whoever is still in a long local step is waited for, as long as an operation would be.
            self.members = distributed.shrink(self.members, timeout=timedelta(seconds=self.members.seconds))
            self.group = self.members.native
            if self.shrunk is not None:
                self.shrunk(self.members, reason)
            try:
                return self._catch_up()
            except (ConnectionError, TimeoutError) as error:
                reason = str(error)

    def _catch_up(self) -> None:
        """Some may have completed the round in which others lost a rank: their result is everybody's, since everybody's update is in it."""
        done = [torch.zeros(1, dtype=torch.int64) for _ in range(self.group.size)]
        self.group.allgather(done, torch.tensor([self.done])).wait(None)
        done = [int(one) for one in done]
        if min(done) < max(done):
            block = self.block.clone()
            self.group.broadcast([block], done.index(max(done))).wait(None)
            if self.done < max(done):
                self.block.copy_(block)
                self.tensor_bytes += self.layout.nbytes
                self.done = max(done)

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
