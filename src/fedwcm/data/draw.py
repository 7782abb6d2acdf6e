"""Draw a test part from training samples: some of each class, or whole clients."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.codes import Codes
from fedwcm.data.features import as_features
from fedwcm.data.large_arrays import joined
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.samples import Parts, Samples
from fedwcm.data.split import client_split, stratified_split

MOVED = 1000
"""Samples moved at a time."""


def draw_test(name: str, parts: Parts, options: ReadOptions) -> Parts:
    """Draw a test part from the training part. The validation part never becomes the test, except for the rows of
    clients that are held out.
    """
    if (parts.val is not None or options.split is not None) and options.test_clients is None:
        text = f"{name} has no test part: {options.test_fraction:.0%} of each class of train is drawn for it"
        more = "" if parts.val is None else "; its validation part is for validation only"
        warnings.warn(text + more, stacklevel=4)
    keep, held_out = draw_rows(name, parts.train.labels, parts.train.client, parts.train.group, options)
    test, val = parts.train.take(held_out), parts.val
    train = _moved_to_front(parts.train, keep) if parts.owned else parts.train.take(keep)
    if val is not None and options.test_clients is not None:
        test, val = _with_own_validation(name, test, val)
    return replace(parts, train=train, test=test, val=val)


def _with_own_validation(name: str, test: Samples, val: Samples) -> tuple[Samples, Samples | None]:
    """Move the validation rows of tested clients to the test: they would choose the model that is tested."""
    if test.client is None or val.client is None:
        text = "the clients of its validation rows are not known: clients that are tested may be among them"
        warnings.warn(f"{name}: {text}", stacklevel=5)
        return test, val
    tested = np.isin(val.client.astype(np.str_), test.client.astype(np.str_))
    tested_parts = [test, val.take(np.flatnonzero(tested))]
    whole = Samples(
        joined([as_features(f"{name}: features", part.x) for part in tested_parts]),
        joined([part.labels for part in tested_parts]),
        np.concatenate([part.client.astype(np.str_) for part in tested_parts if part.client is not None]),
        group=None if test.group is None else np.concatenate([part.group for part in tested_parts]),
    )
    return whole, None if tested.all() else val.take(np.flatnonzero(~tested))


def _moved_to_front(samples: Samples, rows: Codes) -> Samples:
    """These rows, in ascending order, without a second copy: they overwrite those that are not wanted."""
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
) -> tuple[Codes, Codes]:
    """The rows that stay for training and those drawn for the test: some of each class, or whole clients."""
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
