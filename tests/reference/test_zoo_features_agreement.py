"""The engine runs CReFF and CLIP2FL as their formulas say, round by round: models and re-trained heads.

The package's readings: a class's gradient is the exact mean over a client's samples, a cosine has nothing added
to its lengths, and a feature is compared with one copy of each class's embedding.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.core.rng import Purpose, generator
from fedwcm.methods import METHODS
from fedwcm.methods.clip2fl import rotate
from fedwcm.teacher import Teacher

from .longtail_rounds import (
    CLASSES,
    CLOSE,
    COHORTS,
    DATA,
    HIDDEN,
    NET,
    SEED,
    STACKED,
    Settings,
    assert_all_different,
    assert_models,
    played,
    settings_of,
    transcription,
)
from .zoo_features import FeatureServer
from .zoo_longtail import run_clip2fl, run_creff
from .zoo_losses import Labels, Vector

Models = tuple[list[Vector], list[Vector]]  # and heads, after each round

SMALL: dict[str, Any] = {"features": 10, "match_steps": 20, "retrain_epochs": 20, "retrain_batch": 16}
FEW: dict[str, Any] = {"features": 7, "match_steps": 30, "retrain_epochs": 9, "retrain_batch": 32}
MANY: dict[str, Any] = {"features": 100, "match_steps": 10, "retrain_epochs": 5, "retrain_batch": 32}
CREFF: list[dict[str, Any]] = [
    {**SMALL, "retrain_lr": 0.3},
    {**FEW, "retrain_lr": 0.1, "feature_lr": 0.5},
    {**MANY, "average": "uniform", "server_lr": 0.6},
]


@dataclass(frozen=True)
class Clip:
    """The server's term (weight, temperature), the clients' (alpha, temperature), how long embeddings are."""

    options: dict[str, Any]
    server: tuple[float, float]
    client: tuple[float, float]
    width: int


CLIP = [
    Clip(CREFF[0], (0.5, 0.1), (0.7, 2.0), HIDDEN),
    Clip(CREFF[1], (2.0, 0.5), (1.0, 3.0), 9),
    Clip(CREFF[1], (0.001, 0.1), (0.0, 3.0), HIDDEN),
]


def server_rng(r: int) -> torch.Generator:
    return torch.Generator().manual_seed(int(generator(SEED, Purpose.SERVER, r).integers(2**63)))


def first_draws(options: dict[str, Any], embeddings: Vector, rng: torch.Generator) -> tuple[Vector, Vector]:
    """What the first round starts with: the features, and the embeddings rotated into their space."""
    features = torch.randn(CLASSES, options["features"], HIDDEN, generator=rng, dtype=torch.float64)
    return features.numpy(), rotate(torch.from_numpy(embeddings), HIDDEN, rng).numpy()


def round_draws(options: dict[str, Any], rng: torch.Generator) -> tuple[Vector, list[Labels]]:
    """A fresh head, uniform in ±1/√d, and the federated features of every mini-batch."""
    start = torch.rand(CLASSES, HIDDEN + 1, generator=rng, dtype=torch.float64).numpy()
    weight, bias = np.split((2.0 * start - 1.0) / np.sqrt(HIDDEN), [HIDDEN], axis=1)
    total, size = CLASSES * options["features"], options["retrain_batch"]
    orders = [torch.randperm(total, generator=rng).numpy() for _ in range(options["retrain_epochs"])]
    batches = [order[cut : cut + size] for order in orders for cut in range(0, total, size)]
    return np.concatenate([weight.ravel(), bias.ravel()]), batches


def feature_server(options: dict[str, Any], embeddings: Vector) -> tuple[FeatureServer, Vector]:
    """The server, with the numbers that the engine's draws, and the embeddings that it uses."""
    rngs = [server_rng(r) for r in range(len(COHORTS))]
    features, text = first_draws(options, embeddings, rngs[0])
    drawn = [round_draws(options, rng) for rng in rngs]
    own = {key: options[key] for key in ("match_steps", "feature_lr", "retrain_lr") if key in options}
    return FeatureServer(features, lambda r, _: drawn[r][0], lambda r: drawn[r][1], match_eps=0.0, **own), text


@cache
def creff(case: int) -> Models:
    server, _ = feature_server(CREFF[case], np.eye(CLASSES, HIDDEN))
    means = {key: CREFF[case][key] for key in ("average", "server_lr") if key in CREFF[case]}
    found: Models = transcription(run_creff, server=server, **means)
    return found


def said(width: int) -> tuple[Vector, Vector]:
    """A teacher's logits of every sample, and embeddings of the classes, which are not of length 1."""
    rng = np.random.default_rng(11)
    return 2.0 * rng.normal(size=(len(DATA.labels), CLASSES)), rng.normal(size=(CLASSES, width))


@cache
def clip(case: int) -> Models:
    one = CLIP[case]
    logits, embeddings = said(one.width)
    units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    server, text = feature_server(one.options, units)
    np.testing.assert_allclose(text @ text.T, units @ units.T, atol=1e-12)
    found: Models = transcription(
        run_clip2fl,
        server=server,
        teacher=[logits[part] for part in DATA.parts],
        text=text,
        alpha=one.client[0],
        temperature=one.client[1],
        contrast_weight=one.server[0],
        contrast_options={"temperature": one.server[1]},
    )
    return found


def assert_played(settings: Settings, stacked: bool, models: Models) -> None:
    """The model in training is the transcription's, and so is the one that is evaluated."""
    states, method = played(settings, stacked), METHODS[settings["method.name"]]()
    assert_models(states, models[0])
    for (state, _), x, head in zip(states, *models, strict=True):
        evaluated = method.eval_params(state.x, state.method)
        np.testing.assert_allclose(evaluated.numpy(), NET.with_head(x, head), **CLOSE)


@STACKED
@pytest.mark.parametrize("case", range(len(CREFF)))
def test_creff(case: int, stacked: bool) -> None:
    assert_played(settings_of("creff", CREFF[case]), stacked, creff(case))


@STACKED
@pytest.mark.parametrize("case", range(len(CLIP)))
def test_clip2fl(case: int, stacked: bool, tmp_path: Path) -> None:
    one, teacher = CLIP[case], {"teacher": str(tmp_path / "teacher.safetensors")}
    logits, embeddings = map(torch.from_numpy, said(one.width))
    Teacher(logits, embeddings, torch.from_numpy(DATA.labels)).write(teacher["teacher"])
    server = dict(zip(("contrast", "temperature"), one.server, strict=True))
    client = dict(zip(("alpha", "temperature"), one.client, strict=True))
    settings = settings_of("clip2fl", {**one.options, **server, **teacher}, {**client, **teacher})
    assert_played(settings, stacked, clip(case))


def test_no_two_cases_have_the_same_heads() -> None:
    runs = [*(creff(case) for case in range(len(CREFF))), *(clip(case) for case in range(len(CLIP)))]
    assert_all_different([heads[-1] for _, heads in runs])
