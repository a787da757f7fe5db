"""What Python says of privacy spent. The numbers are dp-accounting's and Opacus's; tests/unit/test_dp_accountant.c has all of them."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import torchnative
from torchnative import privacy

CTL = Path(__file__).resolve().parents[2] / "build" / "bin" / "torchnative-ctl"
CASE = dict(q=0.01, sigma=1.0, steps=1000, delta=1e-5)


def test_rdp_and_pld():
    assert privacy.epsilon(**CASE, orders=range(2, 257)) == pytest.approx(2.107753075, abs=1e-8)
    assert privacy.epsilon(**CASE) == pytest.approx(2.101365, abs=1e-6)
    assert privacy.epsilon(**CASE, accountant="rdp", orders=None) == privacy.epsilon(**CASE)
    assert privacy.epsilon(**CASE, accountant="pld") == pytest.approx(1.828244, abs=2e-4)
    assert privacy.epsilon(**CASE | {"steps": 0}) == 0


def test_it_is_there_without_an_import_of_its_own_and_without_torch():
    code = "import sys, torchnative; print(torchnative.privacy.epsilon(q=1, sigma=1, steps=1, delta=1e-5) > 4, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "False"], done.stderr
    assert torchnative.privacy is privacy


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibrate_is_the_inverse(accountant):
    sigma = privacy.calibrate(epsilon=3.0, q=0.05, steps=200, delta=1e-6, accountant=accountant)
    spent = privacy.epsilon(q=0.05, sigma=sigma, steps=200, delta=1e-6, accountant=accountant)
    assert 2.99 < spent <= 3.0


def test_gaussian_mechanism():
    assert privacy.gaussian_sigma(epsilon=1, delta=1e-5) == pytest.approx(3.730631635, abs=1e-8)
    assert privacy.gaussian_epsilon(sigma=2, delta=1e-6) == pytest.approx(2.254084650, abs=1e-8)


def test_distributed():
    case = dict(scale=16, sigma=0.1, clients=100, clip=1, beta=math.exp(-0.5), dimension=1024, steps=1, delta=1e-5)
    assert privacy.distributed_epsilon(noise="skellam", **case) == pytest.approx(7.364839, abs=1e-6)
    assert privacy.distributed_epsilon(noise="discrete_gaussian", **case) == pytest.approx(7.337862, abs=1e-6)
    with pytest.raises(ValueError, match="noise is 'laplace'"):
        privacy.distributed_epsilon(noise="laplace", **case)


@pytest.mark.parametrize(
    "wrong, error, text",
    [
        ({"q": 0}, ValueError, "q is 0; it must be more than 0 and at most 1"),
        ({"q": math.nan}, ValueError, "q is"),
        ({"q": "0.1"}, TypeError, "real number"),
        ({"sigma": -1}, ValueError, "sigma is -1"),
        ({"delta": 1}, ValueError, "delta is 1"),
        ({"steps": -1}, ValueError, "steps is -1"),
        ({"steps": 1.5}, TypeError, "integer"),
        ({"steps": 10**10}, ValueError, "steps is 10000000000"),
        ({"steps": 10**30}, OverflowError, "too big"),
        ({"accountant": "moments"}, ValueError, "accountant is 'moments'; there are 'rdp' and 'pld'"),
        ({"orders": []}, ValueError, "0 orders"),
        ({"orders": [2, 1]}, ValueError, r"orders\[1\] is 1"),
        ({"orders": ["a"]}, TypeError, "real number"),
        ({"orders": 3}, TypeError, "iterable"),
        ({"accountant": "pld", "orders": [2]}, ValueError, "orders belong to the rdp accountant"),
        ({"accountant": "pld", "sigma": 0.05}, ValueError, "sigma is 0.05; it must be from 0.1"),
    ],
)
def test_bad_input_is_named(wrong, error, text):
    with pytest.raises(error, match=text):
        privacy.epsilon(**CASE | wrong)


def test_bad_budgets_are_named():
    with pytest.raises(ValueError, match="epsilon is 0"):
        privacy.calibrate(epsilon=0, q=0.1, steps=1, delta=1e-5)
    with pytest.raises(ValueError, match="no sigma up to 1e\\+06 keeps 10 steps within epsilon 1 at delta 1e-09; larger orders"):
        privacy.calibrate(epsilon=1, q=1, steps=10, delta=1e-9, orders=[2])
    with pytest.raises(ValueError, match="steps is 0"):
        privacy.calibrate(epsilon=1, q=1, steps=0, delta=1e-9)


def test_everything_is_named_in_the_call():
    with pytest.raises(TypeError):
        privacy.epsilon(0.1, 1.0, 10, 1e-5)
    with pytest.raises(TypeError, match="delta"):
        privacy.epsilon(q=0.1, sigma=1.0, steps=10)


def ctl(*arguments):
    return subprocess.run([CTL, "dp", *arguments], capture_output=True, text=True, timeout=60)


def test_the_shell_says_the_same():
    flags = ["--q", "0.01", "--steps", "1000", "--delta", "1e-5"]
    done = ctl("epsilon", "--sigma", "1", *flags)
    assert (done.returncode, done.stdout) == (0, "epsilon 2.101365 at delta 1e-05 (rdp, order 7.8)\n"), done.stderr
    told = json.loads(ctl("epsilon", "--sigma", "1", *flags, "--orders", "2,8,256", "--json").stdout)
    assert told["epsilon"] == pytest.approx(2.107753075, abs=1e-8) and told["order"] == 8
    told = json.loads(ctl("calibrate", "--epsilon", "2", *flags, "--accountant", "pld", "--json").stdout)
    assert told["sigma"] == pytest.approx(privacy.calibrate(epsilon=2, q=0.01, steps=1000, delta=1e-5, accountant="pld"), rel=1e-8)
    assert 1.99 < told["epsilon"] <= 2


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["epsilon", "--delta", "1e-5"], "--sigma is missing"),
        (["epsilon", "--sigma", "1"], "--delta is missing"),
        (["epsilon", "--sigma", "1", "--delta", "1e-5", "--q", "2"], "--q"),
        (["epsilon", "--sigma", "1", "--delta", "1e-5", "--accountant", "x"], "--accountant x: there are rdp and pld"),
        (["epsilon", "--sigma", "1", "--delta", "1e-5", "--orders", "2,,3"], "--orders"),
        (["epsilon", "--sigma", "1", "--delta", "1e-5", "--epsilon", "1"], "--epsilon"),
        (["calibrate", "--delta", "1e-5"], "--epsilon is missing"),
        (["other"], '"other" is no command'),
        ([], "usage"),
    ],
)
def test_wrong_use_of_the_shell_is_named(arguments, text):
    done = ctl(*arguments)
    assert done.returncode == 2 and text in done.stderr and done.stdout == ""
