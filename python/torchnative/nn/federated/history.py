"""What happened in each round."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field


@dataclass
class RoundRecord:
    """One round as this participant saw it.

    Attributes:
        round: 1, 2, ...
        loss: over a group: the example-weighted mean of the ranks' training losses; with a server: this client's own.
            None when nobody gave one.
        metrics: this participant's: what ``train`` and ``evaluate`` returned.
        cohort: how many took part.
        examples: how many examples this participant trained on; 0 when it did not take part.
        bytes_sent, bytes_received: tensor bytes and protocol of this participant in this round.
        seconds: from the start of the round to its new model.
        epsilon: with ``privacy=``: what was spent up to and with this round; else None.
        accepted: whether this participant's update was counted; ``refusal`` says why not.
    """

    round: int
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    cohort: int = 0
    examples: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0
    accepted: bool = True
    refusal: str | None = None
    epsilon: float | None = None


class History:
    """The rounds that this participant saw, oldest first, in ``rounds``."""

    def __init__(self) -> None:
        self.rounds: list[RoundRecord] = []

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[RoundRecord]:
        return iter(self.rounds)

    def __getitem__(self, index):
        return self.rounds[index]

    def to_json(self, path: str | os.PathLike | None = None) -> str:
        """The records as a JSON array; written to ``path`` too when given."""
        text = json.dumps([asdict(record) for record in self.rounds], indent=2)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        return text

    def __repr__(self) -> str:
        if not self.rounds:
            return "History(no rounds)"
        last = self.rounds[-1]
        loss = "" if last.loss is None else f", loss={last.loss:.4f}"
        return f"History({len(self.rounds)} rounds{loss})"
