"""How updates become one model. The arithmetic is C, in the library; these classes name a rule and its settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Aggregator:
    """Base of the rules. ``name`` is what the server's ``--aggregator`` calls it."""

    @property
    def name(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class FedAvg(Aggregator):
    """The example-weighted mean of the clients' deltas (McMahan et al., AISTATS 2017, Algorithm 1).

    Sums run in float64 in a fixed order (rank, or client id with a server) and are rounded once, so the result has the
    same bits on every rank and in every run. Integer state (BatchNorm's counters) takes the maximum of the clients'
    deltas.
    """
