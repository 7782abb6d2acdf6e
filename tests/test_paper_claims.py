"""What the project must show on real data. Minutes each: run with `-m slow`."""

from pathlib import Path

import pytest

import fedwcm
from fedwcm.data import load_dataset
from fedwcm.experiment.runner import MomentumGainWarning

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[1] / "configs" / "fashion-mnist.toml"


@pytest.fixture(autouse=True)
def _fashion_mnist() -> None:
    try:
        load_dataset("fashion-mnist", download=False)
    except FileNotFoundError:
        pytest.skip(
            "Fashion-MNIST is not on this machine: install Debian's dataset-fashion-mnist, or set FEDWCM_DATA"
        )


def accuracies(method: str, imbalance: float, rounds: int = 150) -> list[float]:
    result = fedwcm.run(method, config=CONFIG, imbalance=imbalance, rounds=rounds)
    return [record.test_accuracy for record in result.history]  # type: ignore[misc]


def test_nominal_fedcm_collapses_where_its_gain_is_above_one_and_warns() -> None:
    with pytest.warns(MomentumGainWarning, match=r"gain of 1\.10"):
        curve = accuracies("fedcm-nominal", 0.05, rounds=75)  # later, weights may overflow, or not
    assert max(curve) > 0.7
    assert curve[-1] < 0.3


def test_exact_fedcm_does_not_collapse_there() -> None:
    assert accuracies("fedcm", 0.05)[-1] > 0.78


@pytest.mark.parametrize("imbalance", [0.01, 0.1])
def test_nominal_fedcm_does_not_collapse_where_its_gain_is_below_one(imbalance: float) -> None:
    assert accuracies("fedcm-nominal", imbalance)[-1] > 0.7


@pytest.mark.parametrize(("imbalance", "expected"), [(0.01, 0.79), (0.05, 0.84), (0.1, 0.85)])
def test_fedwcm_trains_normally_in_all_three(imbalance: float, expected: float) -> None:
    assert accuracies("fedwcm", imbalance)[-1] == pytest.approx(expected, abs=0.03)
