"""Differential privacy: what a training spends, and how much noise a budget needs.

    from torchnative import privacy

    privacy.epsilon(q=0.01, sigma=1.0, steps=1000, delta=1e-5)                # 2.10, by Renyi divergences
    privacy.epsilon(q=0.01, sigma=1.0, steps=1000, delta=1e-5, accountant="pld")  # 1.83, close to the truth
    privacy.calibrate(epsilon=2.0, q=0.01, steps=1000, delta=1e-5)            # the sigma to train with

Every result is an upper bound for neighbours that differ by one participant, added or removed. ``sigma`` is the noise
multiplier: the standard deviation of the noise on the sum over the clipping norm. ``q`` is the probability with which
each participant is in a step, *independently of all others* (Poisson sampling); for a fixed number out of all, or for
any choice that depends on data or speed, ``q=1`` is the honest value.

The arithmetic is C, in the library. Numbers out of range raise ``ValueError`` with the parameter's name.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchnative import _tn

__all__ = ["calibrate", "distributed_epsilon", "epsilon", "gaussian_epsilon", "gaussian_sigma"]


def epsilon(*, q: float, sigma: float, steps: int, delta: float, accountant: str = "rdp", orders: Iterable[float] | None = None) -> float:
    """The epsilon that ``steps`` releases of the Poisson-sampled Gaussian mechanism have spent at ``delta``.

    Args:
        q: sampling probability, in (0, 1]; 1 for no sampling.
        sigma: noise multiplier, 0.01 to 1e6 (at least 0.1 for "pld").
        steps: how many releases, 0 to 1e9.
        delta: in (0, 1).
        accountant: "rdp" (milliseconds; a few per cent too high, more for small ``q``) or "pld" (tenths of a second;
            within about 2e-4 of the truth).
        orders: the Renyi orders that "rdp" minimises over, each above 1; default: 156 from 1.1 to 1024.
    """
    return _tn.dp_epsilon(q=q, sigma=sigma, steps=steps, delta=delta, accountant=accountant, orders=orders)


def calibrate(*, epsilon: float, q: float, steps: int, delta: float, accountant: str = "rdp", orders: Iterable[float] | None = None) -> float:
    """The smallest ``sigma`` with which ``steps`` releases stay within ``epsilon`` at ``delta``, rounded up by 1e-6 of it (1e-4 for "pld").

    Raises ValueError also when no sigma up to 1e6 does, which small orders alone cannot.
    """
    return _tn.dp_calibrate(epsilon=epsilon, q=q, steps=steps, delta=delta, accountant=accountant, orders=orders)


def distributed_epsilon(
    *,
    noise: str,
    scale: float,
    sigma: float,
    clients: int,
    clip: float,
    dimension: int,
    steps: int,
    delta: float,
    beta: float = 0.0,
    orders: Iterable[float] | None = None,
) -> float:
    """The epsilon of a secure sum to which each client adds its share of integer noise.

    Args:
        noise: "skellam" or "discrete_gaussian".
        scale: grid points per unit: a client rounds ``scale * x`` to integers.
        sigma: standard deviation of ONE client's share, in units of ``x``.
        clients: how many shares are in the sum at least: the minimum of survivors, not the cohort.
        clip: the L2 norm that a client's vector is clipped to.
        dimension: its number of elements.
        steps: how many sums; every client may be in each (no amplification).
        delta: in (0, 1).
        beta: how unlikely a rounding may be refused and drawn again; 0: none is, at the price of a larger bound.
        orders: integers for "skellam"; default 2 to 128 and 256.
    """
    return _tn.dp_distributed_epsilon(
        noise=noise,
        scale=scale,
        sigma=sigma,
        clients=clients,
        clip=clip,
        beta=beta,
        dimension=dimension,
        steps=steps,
        delta=delta,
        orders=orders,
    )


def gaussian_sigma(*, epsilon: float, delta: float) -> float:
    """The noise that one release with sensitivity 1 needs: the analytic Gaussian mechanism, exact for every ``epsilon``."""
    return _tn.dp_gaussian_sigma(epsilon=epsilon, delta=delta)


def gaussian_epsilon(*, sigma: float, delta: float) -> float:
    """What one release with sensitivity 1 and that noise spends, exactly."""
    return _tn.dp_gaussian_epsilon(sigma=sigma, delta=delta)
