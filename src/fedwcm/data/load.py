"""Load any dataset: one known by name, a file or folder of one's own, or one of the Hugging Face hub."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedwcm.data.dataset import Dataset
from fedwcm.data.formats.hub import read_hub
from fedwcm.data.formats.image_folder import read_image_folder
from fedwcm.data.formats.npz import read_npz
from fedwcm.data.formats.table import read_table
from fedwcm.data.hint import did_you_mean
from fedwcm.data.locate import data_folders, user_cache
from fedwcm.data.named import DATASETS, read_named
from fedwcm.data.objects import as_array, read_arrays
from fedwcm.data.samples import Parts, build_dataset, encode

HUB = "hub:"
TABLE_SUFFIXES = (".csv", ".parquet")


def load_dataset(
    source: Any,
    *,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    split: str | None = None,
    client_ids: object = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    download: bool = True,
) -> Dataset:
    """Load a dataset.

    `source` is a name in `DATASETS`, the path of a `.npz`, `.csv` or `.parquet` file or of a folder of
    images, or `hub:ID` for the Hugging Face hub (`hub:PATH` for a folder made with `save_to_disk`). To load
    a folder that is called like a named dataset, write `./NAME`.

    A named dataset is looked for in `data_dir`, in the folder that the environment variable FEDWCM_DATA
    names, in the user's cache and in the folder of Debian's dataset packages; if it is in none and
    `download` is true, it is downloaded to `data_dir`, or else to the user's cache.

    `label`, `client` and `split` name columns of a table: the class, who holds the row, and `train` or
    `test`. The hub takes `label` and `client`; other sources have no columns.

    If the data has no test part, `test_fraction` of every class is drawn for it with `seed`; see
    `stratified_split` for the rounding. The classes are the sorted unique labels, and so are the clients; a
    client left without training samples is dropped with a warning.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}: it must be above 0 and below 1")
    columns = {"label": label, "client": client, "split": split}
    folder = None if data_dir is None else Path(data_dir).expanduser()
    if isinstance(source, Dataset):
        return source if client_ids is None else _with_clients(source, client_ids)
    name, parts = _read(source, columns, folder, download)
    if client_ids is not None:
        parts = replace(parts, train=replace(parts.train, client=as_array(client_ids)))
    return build_dataset(name, parts, test_fraction, seed)


def _read(
    source: str | Path, columns: dict[str, str | None], data_dir: Path | None, download: bool
) -> tuple[str, Parts]:
    if isinstance(source, str) and source in DATASETS:
        _refuse_columns(source, columns, ())
        download_to = (data_dir or user_cache()) if download else None
        return source, read_named(source, DATASETS[source], data_folders(data_dir), download_to)
    if isinstance(source, str) and source.startswith(HUB):
        _refuse_columns(source, columns, ("label", "client"))
        hub_id = source.removeprefix(HUB)
        return Path(hub_id).name, read_hub(hub_id, label=columns["label"], client=columns["client"])
    if isinstance(source, (str, Path)):
        return _read_path(Path(source).expanduser(), columns)
    return "arrays", read_arrays(source)


def _with_clients(dataset: Dataset, client_ids: object) -> Dataset:
    names, ids = encode(as_array(client_ids))
    return replace(dataset, client_ids=ids, client_names=names)


def _read_path(path: Path, columns: dict[str, str | None]) -> tuple[str, Parts]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is neither a file or folder nor a known dataset{did_you_mean(str(path), DATASETS)}; "
            f"known are {', '.join(DATASETS)}"
        )
    if path.suffix.lower() in TABLE_SUFFIXES and path.is_file():
        return path.stem, read_table(path, **columns)
    _refuse_columns(str(path), columns, ())
    if path.is_dir():
        return path.resolve().name, read_image_folder(path)
    if path.suffix.lower() == ".npz":
        return path.stem, read_npz(path)
    raise ValueError(
        f"{path}: unknown extension {path.suffix!r}; supported are {', '.join(('.npz', *TABLE_SUFFIXES))}, "
        f"a folder of images, {HUB}ID, and the names {', '.join(DATASETS)}"
    )


def _refuse_columns(source: str, columns: dict[str, str | None], allowed: tuple[str, ...]) -> None:
    for option, value in columns.items():
        if value is not None and option not in allowed:
            raise ValueError(
                f"--{option} {value} ({option}={value!r}) names a column, which {source} does not have"
            )
