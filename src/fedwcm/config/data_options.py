"""Options of the data of a run. Nothing here imports torch."""

from dataclasses import dataclass
from typing import Literal

from fedwcm.core.checks import require
from fedwcm.utils.field_types import Flagged

Normalize = Literal["auto", "standard", "none"] | tuple[float, ...] | tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which samples to train and test on.

    Args:
        dataset: a name (`fedwcm list datasets`), a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`), a `.npz` file, a
            folder of images or of `.npy` files, or `hub:ID`.
        data_dir: folder to search first for named data sets.
        shared: workers of the `ray` backend read the data themselves, by the same path, instead of being sent it.
        label: label column of a table.
        client: column with the client of each row, which defines the natural partition; for a folder of images,
            `folder` (CLIENT/CLASS/*) or a table with the columns `file` and `client`.
        group: column of what must stay on one side of every split (test, validation), such as the patient; for a
            folder of images, a table with the columns `file` and `group`.
        split: column that contains `train`, `val` or `test`.
        features: names or patterns (`pixel_*`) of the columns to use; by default all.
        drop: names or patterns of columns to leave out.
        impute: `median` fills in missing values, which are an error otherwise (`none`).
        encoding: encoding of a text file, such as `latin-1`; by default utf-8.
        delimiter: separator of a text file's columns, or `tab`; by default recognised.
        unlabelled: `skip` leaves out rows without a label, which are an error otherwise (`none`).
        image_size: side of the square that images are resized to; `none` for unchanged images, all of one size.
        normalize: `standard` (by mean and standard deviation of the training samples), `none`, `[mean, std]`, or
            `auto`: integers stay unchanged for a model with an embedding, everything else is `standard`.
        test_fraction: share of each class held out for testing if the data has no test set.
        test_clients: hold out whole clients for testing instead: their share, or their names. For data with
            clients of its own and no test set.
        val_fraction: share of each class of the training data held out for validation (to select a round or a
            learning rate) if the data has no validation set. With `test_clients`, the share of the clients: see
            `val_clients`.
        val_clients: hold out whole clients for validation instead: their share, or their names. Rows of clients
            that train say little about new ones.
        imbalance: size of the rarest class over that of the most frequent, obtained by dropping samples; `none`
            keeps the data as it is. `auto` is 0.1 for named data sets and `none` for your own.
        profile: `exponential` or `step` decay of the class sizes.
        n_max: samples of the most frequent class; by default as many as the data allow.
        augment: flip and crop images at random.
        crop_padding: pixels that `augment` adds on every side before it crops.
    """

    dataset: Flagged[str] = "digits"
    data_dir: Flagged[str | None] = None
    shared: bool = False
    label: Flagged[str | None] = None
    client: Flagged[str | None] = None
    group: Flagged[str | None] = None
    split: Flagged[str | None] = None
    features: Flagged[tuple[str, ...]] = ()
    drop: Flagged[tuple[str, ...]] = ()
    impute: Flagged[Literal["median"] | None] = None
    encoding: Flagged[str | None] = None
    delimiter: Flagged[str | None] = None
    unlabelled: Flagged[Literal["skip"] | None] = None
    image_size: Flagged[int | None] = None
    normalize: Flagged[Normalize] = "auto"
    test_fraction: Flagged[float] = 0.2
    test_clients: Flagged[float | tuple[str, ...] | tuple[int, ...] | None] = None
    val_fraction: Flagged[float] = 0.0
    val_clients: Flagged[float | tuple[str, ...] | tuple[int, ...] | None] = None
    imbalance: Flagged[float | Literal["auto", "none"]] = "auto"
    profile: Literal["exponential", "step"] = "exponential"
    n_max: int | None = None
    augment: Flagged[bool] = False
    crop_padding: int = 4

    def __post_init__(self) -> None:
        require(0 <= self.val_fraction < 1, "val_fraction", self.val_fraction, "in [0, 1)")
        require(
            self.val_clients is None or not self.val_fraction,
            "val_clients",
            self.val_clients,
            f"none with val_fraction = {self.val_fraction}: clients are held out for validation, or rows of all",
        )
        share = self.val_clients
        require(
            not isinstance(share, float) or 0 < share < 1,
            "val_clients",
            share,
            "a share of the clients above 0 and below 1, or their names (one called 3 as '3,')",
        )
        largest = self.n_max
        require(largest is None or largest <= 10**9, "n_max", largest, "at most 1,000,000,000")
        require(self.crop_padding >= 0, "crop_padding", self.crop_padding, "non-negative")
        require(
            isinstance(self.imbalance, str) or 0 < self.imbalance <= 1,
            "imbalance",
            self.imbalance,
            "in (0, 1], auto or none" + _as_ratio(self.imbalance),
        )

    @property
    def validation_clients(self) -> float | tuple[str, ...] | tuple[int, ...] | None:
        """The clients that are held out for validation: also where the test is on whole clients."""
        if self.val_clients is None and self.val_fraction and self.test_clients is not None:
            return self.val_fraction
        return self.val_clients

    @property
    def title(self) -> str:
        """The name of the data: for an object, its name without the digest."""
        return self.dataset.removeprefix("object:").partition("#")[0]


def _as_ratio(imbalance: object) -> str:
    """Return what to give for a tail of 1 to so many."""
    return (
        f"; for 1:{imbalance:g} give {1 / imbalance:.3g}" if isinstance(imbalance, float) and imbalance > 1 else ""
    )
