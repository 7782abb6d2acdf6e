"""`fedwcm.calibrate` and `fedwcm.choose_operating_point`: fitted to validation data, kept with the model."""

import csv
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.api.arguments import ClientsLike, DataLike, Folder, ModelLike
from fedwcm.api.own_rows import validation_rows
from fedwcm.api.trained import Trained, load_trained
from fedwcm.core.checks import require, unknown
from fedwcm.core.torch_rng import default_torch_modes
from fedwcm.core.types import Floats, Ints
from fedwcm.data import load_rows
from fedwcm.engine.evaluate import CHUNK
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.model_file import read_model, write_model
from fedwcm.metrics.tradeoff import trade_off
from fedwcm.models.facts import ModelFacts

LOG = logging.getLogger("fedwcm")
BOUNDS = ((-4.0, 4.0), (-3.0, 3.0))
"""Of the logarithm of a temperature, and of the power of p in a mix that is fitted."""

SWEEPS = 10
"""Passes over the classes in which thresholds are moved to lower the cost."""

MARGIN = 1e-6
"""By how much a class must be ahead, so that rounding does not decide."""

POINTS = "balanced, accuracy, recall:CLASS=0.9, cost:FILE, or none"


@default_torch_modes()
def calibrate(
    folder: Folder,
    dataset: DataLike | None = None,
    *,
    model: ModelLike | None = None,
    trust: bool = False,
    label: str | None = None,
    clients: ClientsLike | None = None,
) -> float:
    """Fit the temperature of a run's model to validation data, and keep it with the model.

    It divides the logits so that the validation rows are most likely (Guo and others, ICML 2017), for the class
    mix that they have. Predicted classes stay, probabilities and losses change: those of `evaluate`, `predict`,
    `export` and `load_model`. An operating point is chosen again. For a model whose training does not say which
    class mix it presupposes (`ldam`, `grab`), that mix is fitted too, as a power of the training data's.

    Args:
        folder: the run's folder, or its result.
        dataset: validation data that the model was not trained on; by default the run's own validation rows.
        model: what takes the trained weights, as in `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
        label: label column of that data; the training data's by default.
        clients: the client of every training sample, if the run was given it.

    Returns:
        The temperature.
    """
    run_folder = RunFolder(Path(folder))
    untouched = load_trained(run_folder.path, model, trust, "trained")
    facts, logits, labels = _validation(untouched, run_folder, dataset, label, clients, trust)
    plain = logits * facts.temperature
    facts = _with_temperature(facts, plain, labels)
    if facts.operating_point is not None:
        facts = _with_point(facts, facts.operating_point, plain / facts.temperature, labels)
    write_model(run_folder.model_file, read_model(run_folder), facts)
    return facts.temperature


@default_torch_modes()
def choose_operating_point(
    folder: Folder,
    point: str,
    dataset: DataLike | None = None,
    *,
    model: ModelLike | None = None,
    trust: bool = False,
    label: str | None = None,
    clients: ClientsLike | None = None,
) -> dict[str, float]:
    """Choose what is added to the logits of a run's model on validation data, and keep it with the model.

    It is used by `evaluate`, `predict`, `export` and `load_model` unless they are given a `mix`.

    Args:
        folder: the run's folder, or its result.
        point: `balanced` or `accuracy`: the strength t of a shift by t · log p, p the class distribution of the
            training data, with the highest balanced accuracy or accuracy; `recall:CLASS=0.9`: the smallest amount
            for one class that finds this share of it; `cost:FILE`: amounts for all classes with a low mean cost,
            from a CSV file with a line per class and a column per class that it is taken for; `none`: forget it.
        dataset: validation data that the model was not trained on; by default the run's own validation rows.
        model: what takes the trained weights, as in `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
        label: label column of that data; the training data's by default.
        clients: the client of every training sample, if the run was given it.

    Returns:
        What is added to the logit of each class, by name.
    """
    run_folder = RunFolder(Path(folder))
    untouched = load_trained(run_folder.path, model, trust, "trained")
    if point == "none":
        facts = replace(untouched.facts, operating_point=None, operating_shift=None)
    else:
        facts, logits, labels = _validation(untouched, run_folder, dataset, label, clients, trust)
        facts = _with_point(facts, point, logits, labels)
    write_model(run_folder.model_file, read_model(run_folder), facts)
    return dict(zip(facts.classes, facts.operating_shift or (0.0,) * len(facts.classes), strict=True))


def _validation(
    untouched: Trained,
    folder: RunFolder,
    dataset: DataLike | None,
    label: str | None,
    clients: ClientsLike | None,
    trust: bool,
) -> tuple[ModelFacts, Tensor, Tensor]:
    """Return the metadata of the model, its logits on the validation rows, and their labels."""
    if dataset is None:
        rows = validation_rows(untouched, folder.config(trust=trust), clients)
    else:
        rows = load_rows(dataset, untouched.schema, label=label)
    assert rows.y is not None
    return untouched.facts, untouched.logits(rows), torch.from_numpy(rows.y)


def _with_temperature(facts: ModelFacts, plain: Tensor, labels: Tensor) -> ModelFacts:
    """Return the metadata with the temperature that makes the rows most likely, and the mix if it has no rule."""
    from scipy.optimize import minimize  # here: most runs do not need scipy

    counts = np.bincount(labels.numpy(), minlength=len(facts.classes)) + facts.natural_shares
    mix, log_p = counts / counts.sum(), np.log(facts.natural_shares)
    rule = facts.shift_to(mix) if facts.has_rule else None

    def shift(values: Floats) -> Floats:
        return values[1] * log_p if rule is None else rule

    def loss(values: Floats) -> float:
        return float(cross_entropy(plain / np.exp(values[0]) + torch.from_numpy(shift(values)).to(plain), labels))

    start = np.zeros(2 if rule is None else 1)
    best = minimize(loss, start, method="Nelder-Mead", bounds=BOUNDS[: len(start)], options={"xatol": 1e-5})
    LOG.info(f"loss on the {len(labels)} validation rows, for their class mix: {loss(start):.4f} → {best.fun:.4f}")
    fitted = mix * np.exp(-shift(best.x))
    return replace(
        facts,
        temperature=float(np.exp(best.x[0])),
        fitted=None if facts.has_rule else tuple((fitted / fitted.sum()).tolist()),
    )


def _with_point(facts: ModelFacts, point: str, logits: Tensor, labels: Tensor) -> ModelFacts:
    """Return the metadata with this operating point, chosen on these rows."""
    kind, _, rest = point.partition(":")
    if point in ("balanced", "accuracy"):
        counts = np.array(facts.class_counts)
        curve = trade_off(logits.split(CHUNK), labels, facts.natural_shares, counts)
        strength = curve.best("balanced_accuracy" if point == "balanced" else "accuracy")
        shift = strength * np.log(facts.natural_shares) + 0.0  # never -0
    elif kind == "recall" and "=" in rest:
        shift = _shift_for_recall(rest, facts.classes, logits, labels)
    elif kind == "cost" and rest:
        shift = _shift_for_cost(_read_costs(Path(rest), facts.classes), logits.double().numpy(), labels.numpy())
    else:
        raise ValueError(f"operating point = {point!r} is not allowed: it must be {POINTS}")
    return replace(facts, operating_point=point, operating_shift=tuple((shift - shift.mean()).tolist()))


def _shift_for_recall(text: str, classes: tuple[str, ...], logits: Tensor, labels: Tensor) -> Floats:
    """Return the smallest amount for one class, `CLASS=0.9`, with which this share of its rows is found."""
    name, _, number = text.rpartition("=")
    if name not in classes:
        raise unknown("class in the operating point:", name, classes)
    try:
        share = float(number)
    except ValueError:
        share = float("nan")
    require(0 < share <= 1, f"operating point, recall of {name!r},", number, "above 0 and at most 1")
    chosen = classes.index(name)
    own = logits[labels == chosen].double()
    require(
        len(own) > 0, "operating point", text, f"of a class in the validation data, which has no row of {name!r}"
    )
    LOG.info(f"validation rows of {name!r} to choose on: {len(own)}")
    others = own.clone()
    others[:, chosen] = -torch.inf
    behind = (others.amax(dim=1) - own[:, chosen]).sort().values.numpy()
    shift = np.zeros(len(classes))
    shift[chosen] = behind[int(np.ceil(share * len(behind))) - 1] + MARGIN
    return shift


def _shift_for_cost(costs: Floats, logits: Floats, labels: Ints) -> Floats:
    """Return amounts for all classes with a low mean cost, moved one class at a time from those of no shift."""
    shift = np.zeros(len(costs))
    for _ in range(SWEEPS):
        before = shift.copy()
        for chosen in range(len(costs)):
            shift[chosen] += _best_move(chosen, costs, logits + shift, labels)
        if np.array_equal(shift, before):
            break
    return shift


def _best_move(chosen: int, costs: Floats, logits: Floats, labels: Ints) -> float:
    """Return by how much one class is to be moved: rows change sides in the order of their margins."""
    others = logits.copy()
    others[:, chosen] = -np.inf
    behind, rival = others.max(axis=1) - logits[:, chosen], others.argmax(axis=1)
    order = np.argsort(behind)
    gains = (costs[labels, chosen] - costs[labels, rival])[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)])  # after the first n rows have gone to the class
    edges = np.concatenate([[behind[order[0]] - 1.0], behind[order], [behind[order[-1]] + 1.0]])
    moves, wide = (edges[:-1] + edges[1:]) / 2, np.diff(edges) > 2 * MARGIN
    covered = totals[int((behind < 0).sum())]
    best = np.where(wide, totals, np.inf)
    if not best.min() < covered - 1e-12:
        return 0.0
    ties = np.flatnonzero(best <= best.min() + 1e-12)
    return float(moves[ties[np.abs(moves[ties]).argmin()]])


def _read_costs(path: Path, classes: tuple[str, ...]) -> Floats:
    """Return `costs[i, j]` of taking class i for class j, from a CSV file with the names of the classes."""
    require(path.is_file(), "operating point, cost", str(path), "a CSV file")
    heading, *lines = [row for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) if row]
    names, rows = heading[1:], {row[0]: row[1:] for row in lines}
    for name in (*names, *rows):
        if name not in classes:
            raise unknown(f"class in {path}:", name, classes)
    missing = [name for name in classes if name not in names or name not in rows]
    require(
        not missing, "operating point, cost", str(path), f"a line and a column for every class, also {missing}"
    )
    try:
        return np.array([[float(rows[i][names.index(j)]) for j in classes] for i in classes])
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: a cost is missing or not a number ({error})") from None
