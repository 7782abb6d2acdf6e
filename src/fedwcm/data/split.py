"""Hold out a part of the samples: of every class, or of whole clients; and draw the test part of a source."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import as_features, quote_names
from fedwcm.data.large_arrays import join_arrays
from fedwcm.data.raw import RawSplits, Samples
from fedwcm.data.read_options import ReadOptions

Indices = NDArray[np.int64]

MOVED = 1000
"""Samples moved at a time."""


def stratified_split(
    labels: NDArray[Any], fraction: float, rng: np.random.Generator, groups: NDArray[Any] | None = None
) -> tuple[Indices, Indices]:
    """Split sample indices into `(keep, held_out)`, both in ascending order.

    Of a class with n samples, `floor(n * fraction + 0.5)` are held out (the nearest whole number, halves
    upwards), drawn at random, but never all n: every class keeps at least one sample in `keep`.
    Labels may be of any type that NumPy can sort.

    With `groups`, one for each sample, all samples of a group are in one of the two. Groups are drawn one after
    the other, and one is held out if that brings the classes closer to these counts and uses up none of them.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction is {fraction}: it must be at least 0 and below 1")
    if groups is not None:
        return _group_split(labels, fraction, rng, groups)
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(int(len(members) * fraction + 0.5), len(members) - 1)
        held_out[rng.permutation(members)[:count]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _group_split(
    labels: NDArray[Any], fraction: float, rng: np.random.Generator, groups: NDArray[Any]
) -> tuple[Indices, Indices]:
    _, classes = np.unique(labels, return_inverse=True)
    names, members = np.unique(groups, return_inverse=True)
    totals = np.bincount(classes)
    targets = np.minimum(np.floor(totals * fraction + 0.5), totals - 1)
    counts = np.bincount(members * len(totals) + classes, minlength=len(names) * len(totals))
    counts = counts.reshape(len(names), len(totals))
    is_held_out, counted = np.zeros(len(names), dtype=bool), np.zeros(len(totals), dtype=np.int64)
    for group in rng.permutation(len(names)):
        after = counted + counts[group]
        gain = (((counted - targets) / totals) ** 2).sum() - (((after - targets) / totals) ** 2).sum()
        if gain > 0 and (after < totals).all():
            is_held_out[group], counted = True, after
    held_out = is_held_out[members]
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def client_split(
    clients: NDArray[Any],
    chosen: float | Sequence[object],
    rng: np.random.Generator,
    option: str = "test_clients",
) -> tuple[Indices, Indices]:
    """Split sample indices into `(keep, held_out)`, both in ascending order, all of a client in one of them.

    Args:
        clients: the client of each sample.
        chosen: the names of those to hold out, or the share of the clients to draw: the nearest whole number of
            them, at least one and never all.
        rng: draws them.
        option: what an error calls the choice.
    """
    unique, ids = np.unique(clients, return_inverse=True)
    names = [str(name) for name in unique]
    if isinstance(chosen, float):
        count = min(max(1, int(len(names) * chosen + 0.5)), len(names) - 1)
        out = rng.permutation(len(names))[:count]
    else:
        unknown = [str(name) for name in chosen if str(name) not in names]
        if unknown:
            raise ValueError(
                f"{option}: no client is called {quote_names(unknown)}; they are {quote_names(names)}"
            )
        out = np.array([names.index(str(name)) for name in chosen], dtype=np.int64)
    if len(set(out.tolist())) in (0, len(names)):
        text = "leaves no client to train, or none to hold out"
        raise ValueError(f"{option} = {chosen!r} {text}: there are {len(names)} clients")
    held_out = np.isin(ids, out)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def draw_test(name: str, splits: RawSplits, options: ReadOptions) -> RawSplits:
    """Draw a test part from the training part. The validation part never becomes the test, except for the rows of
    clients that are held out.
    """
    samples, val = splits.train, splits.parts.get("val")
    if (val is not None or options.split is not None) and options.test_clients is None:
        text = f"{name} has no test part: {options.test_fraction:.0%} of each class of train is drawn for it"
        more = "" if val is None else "; its validation part is for validation only"
        warnings.warn(text + more, stacklevel=4)
    drawn = splits.drawn or draw_rows(name, samples.labels, samples.client, samples.group, options)
    test = samples.take(drawn[1])
    train = _move_to_front(samples, drawn[0]) if splits.owned else samples.take(drawn[0])
    if val is not None and options.test_clients is not None:
        test, val = _with_own_validation(name, test, val)
    held_out = {"test": test} if val is None else {"val": val, "test": test}
    return replace(splits, parts={"train": train, **held_out})


def _with_own_validation(name: str, test: Samples, val: Samples) -> tuple[Samples, Samples | None]:
    """Move the validation rows of tested clients to the test: they would choose the model that is tested."""
    if test.client is None or val.client is None:
        text = "the clients of its validation rows are not known: clients that are tested may be among them"
        warnings.warn(f"{name}: {text}", stacklevel=5)
        return test, val
    tested = np.isin(val.client.astype(np.str_), test.client.astype(np.str_))
    tested_parts = [test, val.take(np.flatnonzero(tested))]
    whole = Samples(
        join_arrays([as_features(f"{name}: features", part.x) for part in tested_parts]),
        join_arrays([part.labels for part in tested_parts]),
        np.concatenate([part.client.astype(np.str_) for part in tested_parts if part.client is not None]),
        group=None if test.group is None else np.concatenate([part.group for part in tested_parts]),
    )
    return whole, None if tested.all() else val.take(np.flatnonzero(~tested))


def _move_to_front(samples: Samples, rows: Indices) -> Samples:
    """Keep these rows, in ascending order, without a second copy: they overwrite the others."""
    if not samples.x.flags.writeable:
        return samples.take(rows)
    for start in range(0, len(rows), MOVED):
        chosen = rows[start : start + MOVED]
        samples.x[start : start + len(chosen)] = samples.x[chosen]
    return samples.with_inputs(samples.x[: len(rows)], rows)


def draw_rows(
    name: str,
    labels: NDArray[Any],
    clients: NDArray[Any] | None,
    groups: NDArray[Any] | None,
    options: ReadOptions,
) -> tuple[Indices, Indices]:
    """Draw the rows that stay for training and those for the test: some of each class, or whole clients."""
    rng = np.random.default_rng(options.seed)
    if options.test_clients is None:
        return stratified_split(labels, options.test_fraction, rng, groups)
    clients = clients if options.client_ids is None else options.client_ids
    if clients is not None and len(clients) != len(labels):
        raise ValueError(f"{name}: train part: {len(labels)} samples but {len(clients)} clients")
    if clients is None:
        raise ValueError(
            f"test_clients = {options.test_clients!r} needs data with clients of its own, which {name} does not "
            "have: name their column (--client COLUMN), or pass clients=[…] in Python"
        )
    return client_split(clients, options.test_clients, rng)
