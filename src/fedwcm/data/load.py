"""Load any dataset: one known by name, a file or folder of one's own, or one of the Hugging Face hub."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from fedwcm.core.checks import did_you_mean
from fedwcm.data.build import build_dataset, build_rows, encode, source_digest
from fedwcm.data.dataset import Dataset, as_whole_numbers
from fedwcm.data.formats.arrays import is_npy_folder, read_npy_folder, read_npz
from fedwcm.data.formats.safety import reading
from fedwcm.data.named import DATASETS, data_folders, read_named, user_cache
from fedwcm.data.raw import InferenceRows, RawSplits
from fedwcm.data.read_options import READING, Impute, ReadOptions, Unlabelled
from fedwcm.data.schema import DatasetSchema

HUB = "hub:"
TABLE_OPTIONS = (*READING, "image_size")
HUB_OPTIONS = ("label", "client", "group", "id", "features", "drop", "impute", "image_size")
FOLDER_OPTIONS = ("client", "group", "image_size")


def load_dataset(
    source: Any,
    *,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    group: str | None = None,
    split: str | None = None,
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    impute: Impute | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    unlabelled: Unlabelled | None = None,
    image_size: int | None = None,
    client_ids: object = None,
    test_fraction: float = 0.2,
    test_clients: float | Sequence[str] | Sequence[int] | None = None,
    seed: int = 0,
    download: bool = True,
) -> Dataset:
    """Load a dataset to train on.

    `source` is a name in `DATASETS`, the path of a table (`.csv`, `.tsv`, `.jsonl`, each perhaps with `.gz`, or
    `.parquet`), of a `.npz` file or of a folder of images or of `.npy` files, or `hub:ID` for the Hugging Face hub
    (`hub:PATH` for a folder made with `save_to_disk`). To load a folder that is called like a named dataset, write
    `./NAME`.

    A named dataset is looked for in `data_dir`, in the folder that the environment variable FEDWCM_DATA
    names, in the user's cache and in the folder of Debian's dataset packages; if it is in none and
    `download` is true, it is downloaded to `data_dir`, or else to the user's cache.

    If the data has no test part, `test_fraction` of every class is drawn for it with `seed`; see
    `stratified_split` for the rounding. The classes are the sorted unique labels, and so are the clients; a
    client left without training samples is dropped with a warning.

    Args:
        source: where the data is, or the data itself: a `Dataset`, arrays and the like (`fedwcm.data.objects`).
        data_dir: the folder in which a named dataset is looked for first.
        client_ids: the client of every training sample, in the order of the source.
        seed: of the draw of a test part.
        download: whether a named dataset may be downloaded.

    The other keywords are the options of the same names under `data` (docs/options.md).
    """
    options = ReadOptions(
        label=label,
        client=client,
        group=group,
        split=split,
        features=tuple(features),
        drop=tuple(drop),
        impute=impute,
        encoding=encoding,
        delimiter=delimiter,
        unlabelled=unlabelled,
        image_size=image_size,
        test_fraction=test_fraction,
        test_clients=test_clients,
        client_ids=None if client_ids is None else _to_ids(client_ids),
        seed=seed,
    )
    if isinstance(source, Dataset) and test_clients is None:
        options.refuse(source.name, "a fedwcm.Dataset", ())
        options.refuse_test_fraction(source.name)
        if options.client_ids is None:
            return source
        names, ids = encode(options.client_ids)
        return replace(source, client_ids=ids, client_names=names)
    name, splits = _read(source, options, data_dir, download)
    if not (isinstance(source, str) and source in DATASETS):
        splits = replace(splits, digest=source_digest(splits))
    if options.client_ids is not None:
        splits = splits.with_parts(train=replace(splits.train, client=options.client_ids))
    return build_dataset(name, splits, options)


def _to_ids(client_ids: object) -> NDArray[Any]:
    from fedwcm.data.objects import as_array  # needs torch, which a file does not

    return as_whole_numbers(as_array(client_ids))


def load_rows(
    source: Any,
    schema: DatasetSchema,
    *,
    labelled: bool = True,
    part: Literal["auto", "all"] = "auto",
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    split: str | None = None,
    id: str | None = None,
    drop: Sequence[str] = (),
    encoding: str | None = None,
    delimiter: str | None = None,
    unlabelled: Unlabelled | None = None,
) -> InferenceRows:
    """Load samples for a model that is trained already, by the schema of its training data. Nothing is drawn.

    Columns and classes are matched by name, whatever their order; missing, unknown and perhaps renamed ones are
    named in the error. Of a source with a test part that part is taken, of any other everything; with
    `part="all"` always everything. Without labels (`labelled=False`) none are needed, and rows stay in the order
    of the source.

    `id` is a column of a table whose values name the rows. The other options are those of `load_dataset`;
    the label's column is the training data's unless it is named.
    """
    options = ReadOptions(
        label=label,
        client=client,
        split=split,
        id=id,
        drop=tuple(drop),
        encoding=encoding,
        delimiter=delimiter,
        unlabelled=unlabelled,
        schema=schema,
        labelled=labelled,
        whole=part == "all",
    )
    name, splits = _read(source, options, data_dir, download=True)
    return build_rows(name, splits, options)


def _read(source: Any, options: ReadOptions, data_dir: str | Path | None, download: bool) -> tuple[str, RawSplits]:
    folder = None if data_dir is None else Path(data_dir).expanduser()
    if isinstance(source, str) and source in DATASETS:
        options.refuse(source, "a named dataset", ())
        download_to = (folder or user_cache()) if download else None
        return source, read_named(source, DATASETS[source], data_folders(folder), download_to)
    if isinstance(source, str) and source.startswith(HUB):
        options.refuse(source, "a dataset of the hub", HUB_OPTIONS)
        from fedwcm.data.formats.hub import read_hub  # needs pyarrow and Pillow

        hub_id = source.removeprefix(HUB)
        return Path(hub_id).name, read_hub(hub_id, options)
    if isinstance(source, (str, Path)):
        return _read_path(Path(source).expanduser(), options)
    from fedwcm.data.objects import as_parts, read_object  # needs torch, which a file does not

    if isinstance(source, Dataset):
        options.refuse(source.name, "a fedwcm.Dataset", ())
        return source.name, as_parts(source, options)
    return read_object(source, options)


def _read_path(path: Path, options: ReadOptions) -> tuple[str, RawSplits]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is neither a file or folder nor a known dataset{did_you_mean(str(path), DATASETS)}; "
            f"known are {', '.join(DATASETS)}"
        )
    from fedwcm.data.formats.image_folder import read_image_folder  # these need pyarrow and Pillow
    from fedwcm.data.formats.table import read_table
    from fedwcm.data.formats.table_file import SUFFIXES, table_suffix

    suffix = table_suffix(path)
    with reading(path):
        if is_npy_folder(path):
            options.refuse(str(path), "a folder of .npy files", ())
            return path.resolve().name, read_npy_folder(path, options)
        if path.is_dir():
            options.refuse(str(path), "a folder of images", FOLDER_OPTIONS)
            return path.resolve().name, read_image_folder(path, options)
        if suffix is not None and path.is_file():
            options.refuse(str(path), "a table", TABLE_OPTIONS)
            return path.name[: -len(suffix)], read_table(path, options)
        if path.suffix.lower() == ".npz" and path.is_file():
            options.refuse(str(path), "a .npz file", ())
            return path.stem, read_npz(path, options)
    raise ValueError(
        f"{path}: unknown extension {path.suffix!r}; supported are {', '.join(('.npz', *SUFFIXES))}, "
        f"a folder of images or of .npy files, {HUB}ID, and the names {', '.join(DATASETS)}"
    )
