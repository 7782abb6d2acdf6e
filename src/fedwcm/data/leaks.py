"""Signs that a test is easier than it should be: the label among the inputs, rows and groups in two parts."""

import warnings

import numpy as np

from fedwcm.data.dataset import Dataset, quote_names
from fedwcm.data.raw import Samples

FEW_ROWS = 20
"""Below this many training rows, a column may agree with the label by chance."""

COMPARED_BYTES = 2**28
"""Bytes of inputs up to which training and test rows are compared."""

CHUNK = 1000


def warn_of_leaks(data: Dataset) -> None:
    """Warn of a column that tells the class of every row, and of test rows that are training rows as well."""
    if data.x_train.ndim == 2 and len(data.x_train) >= FEW_ROWS:
        _warn_of_label(data)
    if data.x_train.nbytes + data.x_test.nbytes <= COMPARED_BYTES:
        trained = {row.tobytes() for row in data.x_train}
        shared = sum(row.tobytes() in trained for row in data.x_test)
        if shared:
            text = f"{data.name}: {shared} of {len(data.x_test)} test rows equal a training row"
            cure = "if they are copies, the result is too good: remove them, or keep them together with --group"
            warnings.warn(f"{text}: {cure}", stacklevel=4)


def _warn_of_label(data: Dataset) -> None:
    """Warn if a column has one value for each class, another for every other."""
    present, first, counts = np.unique(data.y_train, return_index=True, return_counts=True)
    if len(present) < 2 or counts.min() < 2:
        return
    values = np.zeros((data.num_classes, data.x_train.shape[1]), dtype=data.x_train.dtype)
    values[present] = data.x_train[first]
    constant = np.ones(data.x_train.shape[1], dtype=bool)
    for start in range(0, len(data.x_train), CHUNK):
        rows = slice(start, start + CHUNK)
        constant &= (data.x_train[rows] == values[data.y_train[rows]]).all(axis=0)
        if not constant.any():
            return
    columns = data.encoding.columns
    widths = [len(column.feature_names) for column in columns] or [1] * data.x_train.shape[1]
    names = [column.name for column in columns] or range(data.x_train.shape[1])
    for name, start, width in zip(names, np.cumsum([0, *widths]), widths, strict=False):
        block = slice(start, start + width)
        if constant[block].all() and len(np.unique(values[present][:, block], axis=0)) == len(present):
            text = f"{data.name}: column {name!r} tells the class of every training row, one to one"
            warnings.warn(f"{text}: if it is another form of the label, leave it out (--drop)", stacklevel=5)
            return


def refuse_divided_groups(name: str, parts: dict[str, Samples]) -> None:
    """Refuse parts of which two have samples of one group."""
    groups = {part: samples.group for part, samples in parts.items() if len(samples.x)}
    if all(values is None for values in groups.values()):
        return
    seen: dict[str, str] = {}
    for part, values in groups.items():
        if values is None:
            raise ValueError(f"{name}: the groups of the {part} part are not known, those of others are")
        own = [str(value) for value in np.unique(values)]
        if both := [group for group in own if group in seen]:
            raise ValueError(
                f"{name}: the groups {quote_names(both)} have samples in {part} and in {seen[both[0]]}: a group "
                "must be in one part"
            )
        seen.update(dict.fromkeys(own, part))
