"""Differential privacy in the Engine: ``privacy=[federated.CentralDP(...)]`` or ``[federated.LocalDP(...)]``.

The arithmetic is C; docs/privacy.md says what each protects, and from whom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchnative import _tn, privacy

from .channels import GroupChannel, Task

RATE = 0.2  # of adaptive clipping; the noise on its count is a twentieth of the denominator


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
        raise ValueError(f"{name}={value!r}; a number above 0 is needed")


@dataclass(frozen=True)
class CentralDP:
    """Noise on the sum of clipped updates, over a process group. (With a server it is the server's: ``--dp``.)

    The models that come out say little about any one participant. Updates are scaled down to norm ``clip``, all count the
    same whatever their examples, and rank 0 adds discrete Gaussian noise to its own before they meet, so the other ranks
    see sums with noise only. Counters and other integer tensors do not change.

    Args:
        clip: L2 norm to which updates are clipped; with ``quantile`` the first one.
        noise: noise multiplier: the standard deviation of the noise on the sum over ``clip``.
        delta: at which epsilon is told.
        budget: the run ends before epsilon would be more than this; None: no limit.
        quantile: let ``clip`` follow this quantile of the updates' norms (0.5: the median).
        denominator: what the sum is divided by, fixed; default: the number of ranks at the start.
    """

    clip: float
    noise: float
    delta: float = 1e-5
    budget: float | None = None
    quantile: float | None = None
    denominator: float | None = None

    def __post_init__(self) -> None:
        _positive("clip", self.clip)
        for name in ("budget", "denominator"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ValueError(f"quantile={self.quantile!r}; a number between 0 and 1 is needed")
        first = self.spent(1)  # refuses noise and delta by name
        if self.budget is not None and first > self.budget:
            raise ValueError(
                f"budget={self.budget}: one round spends epsilon {first:.4g} at delta {self.delta}; "
                "torchnative.privacy.calibrate() tells the noise that a budget needs"
            )

    def spent(self, rounds: int) -> float:
        """Epsilon after so many rounds with everybody in each."""
        return privacy.epsilon(q=1.0, sigma=self.noise, steps=rounds, delta=self.delta)


@dataclass(frozen=True)
class LocalDP:
    """Noise on this participant's own update, before it leaves: whoever gets it learns little, the server included.

    The update is clipped and gets the noise of the analytic Gaussian mechanism for any two updates of that norm. The
    number of examples is sent as 1 and metrics are not sent, since nothing would protect them. Counters and other
    integer tensors do not change.

    Args:
        clip: L2 norm to which the update is clipped.
        epsilon, delta: what ONE round spends; rounds add up (:meth:`spent`).
    """

    clip: float
    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        _positive("clip", self.clip)
        self.sigma  # noqa: B018: refuses epsilon and delta by name

    @property
    def sigma(self) -> float:
        """Noise over the largest difference of two updates, 2 ``clip``."""
        return privacy.gaussian_sigma(epsilon=self.epsilon, delta=self.delta)

    def spent(self, rounds: int) -> float:
        """Epsilon after so many rounds, at ``delta``."""
        return self.epsilon if rounds == 1 else privacy.epsilon(q=1.0, sigma=self.sigma, steps=rounds, delta=self.delta)

    def protect(self, layout: "_tn.Layout", delta: torch.Tensor) -> None:
        _tn.dp_randomise(layout, delta, self.clip, self.epsilon, self.delta)


class PrivateGroupChannel(GroupChannel):
    """A group whose sum is clipped and noisy. An attempt that a lost rank broke off counts as a release: somebody may have its sum."""

    def __init__(self, central: CentralDP, *args) -> None:
        super().__init__(*args)
        self.central, self.settings = central, f"privacy=[{central}]"
        self.clip, self.multiplier = central.clip, central.noise
        self.denominator = float(central.denominator or self.group.size)
        self.releases = 0
        if central.quantile is not None:
            self.count_sigma = self.denominator / 20
            self.multiplier = _tn.dp_adaptive_split(central.noise, central.quantile, RATE, self.count_sigma)

    def epsilon(self) -> float:
        return self.central.spent(self.releases)

    def _exhausted(self) -> bool:
        return self.central.budget is not None and self.central.spent(self.releases + 1) > self.central.budget

    def next(self) -> Task | None:
        return None if self._exhausted() else super().next()

    def _add_up(self, delta: torch.Tensor, examples: int, metrics: dict[str, float], refusal: str | None, table: list) -> None:
        facts = torch.tensor([0.0 if refusal else 1.0, self.releases, self.done, self.clip], dtype=torch.float64)
        everyone = [torch.empty_like(facts) for _ in range(self.group.size)]
        self.group.allgather(everyone, facts).wait(None)
        rows = torch.stack(everyone).tolist()
        table[:] = [[row[0], 0.0, 0.0] for row in rows]  # the losses stay where they are
        self.releases = int(max(row[1] for row in rows))
        self.clip = max(rows, key=lambda row: row[2])[3]  # of who saw the last round end
        if not any(row[0] for row in rows):
            return
        if self._exhausted():
            raise RuntimeError(f"the privacy budget is spent: another attempt would bring epsilon over {self.central.budget}")
        self.releases += 1
        count, width, sigma = _tn.dp_grid(self.layout, self.clip, self.multiplier)
        sums = torch.zeros(count + 1, dtype=torch.int64)
        adaptive = self.central.quantile is not None
        if not refusal:
            within = _tn.dp_to_grid(self.layout, delta, self.clip, self.multiplier, sums[:count])
            if adaptive:
                sums[count] = 1 if within else -1
        if self.group.rank == 0:
            _tn.dp_add_noise(sums[:count], sigma**2)
            if adaptive:
                _tn.dp_add_noise(sums[count:], (2 * self.count_sigma) ** 2)
        self.group.allreduce([sums], "SUM").wait(None)
        total = torch.empty_like(delta)
        _tn.dp_from_grid(self.layout, sums[:count], width / self.denominator, total)
        self.layout.apply(self.block, total)
        if adaptive:
            share = 0.5 + int(sums[count]) / (2 * self.denominator)
            self.clip = _tn.dp_adaptive_clip(self.clip, share, self.central.quantile, RATE)
        self.tensor_bytes += sums.nbytes
        self.done += 1
