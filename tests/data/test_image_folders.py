"""Folders of images: parts, clients, mixed sizes and every format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from fedwcm.data import load_dataset
from fedwcm.data.formats.images import image_suffixes


def save(path: Path, shade: int = 0, size: tuple[int, int] = (6, 4), **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, shade).save(path, **options)


# Parts --------------------------------------------------------------------------------------------


def write_parts(folder: Path, sizes: dict[str, int]) -> None:
    for part, count in sizes.items():
        for i in range(count):
            for name in ("cat", "dog"):
                save(folder / part / name / f"{i}.png", i)


@pytest.mark.parametrize("name", ["val", "valid", "Validation", "dev"])
def test_a_validation_folder_beside_train_and_test_is_the_validation_part(tmp_path: Path, name: str) -> None:
    write_parts(tmp_path, {"train": 5, name: 3, "test": 2})
    data = load_dataset(tmp_path)
    assert data.y_val is not None
    assert data.x_val is not None
    assert [len(y) for y in (data.y_train, data.y_val, data.y_test)] == [10, 6, 4]
    assert sorted(set(data.x_val[:, 0, 0, 0])) == [0, 1, 2]


def test_validation_is_not_the_test_where_there_is_none(tmp_path: Path) -> None:
    write_parts(tmp_path, {"train": 10, "val": 3})
    with pytest.warns(UserWarning, match="no test part: 30% of each class of train is drawn"):
        data = load_dataset(tmp_path, test_fraction=0.3)
    assert data.y_val is not None
    assert [len(y) for y in (data.y_train, data.y_val, data.y_test)] == [14, 6, 6]


def test_two_names_for_one_part_and_other_folders_are_pointed_out(tmp_path: Path) -> None:
    write_parts(tmp_path, {"train": 5, "test": 2, "notes": 1})
    with pytest.warns(UserWarning, match="'notes' are ignored"):
        load_dataset(tmp_path)
    write_parts(tmp_path, {"testing": 2})
    with pytest.raises(ValueError, match="two parts for 'test', 'test' and 'testing'"):
        load_dataset(tmp_path)


def test_a_class_with_validation_images_only_is_refused(tmp_path: Path) -> None:
    write_parts(tmp_path, {"train": 5, "val": 3, "test": 2})
    save(tmp_path / "val/owl/0.png")
    with pytest.raises(ValueError, match="only validation samples, of class 'owl'"):
        load_dataset(tmp_path)


def test_a_split_column_may_name_validation_rows(tmp_path: Path) -> None:
    lines = [f"{i},{i % 2},{['train', 'test', 'VALID'][i // 10]}" for i in range(30)]
    (tmp_path / "own.csv").write_text("\n".join(["x,y,part", *lines]))
    data = load_dataset(tmp_path / "own.csv", label="y", split="part")
    assert data.x_val is not None
    assert data.x_val[:, 0].tolist() == list(range(20, 30))
    assert data.x_test[:, 0].tolist() == list(range(10, 20))


# Clients ------------------------------------------------------------------------------------------


def test_folders_above_the_classes_are_clients_on_request(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for shade, client in enumerate(("oslo", "rome")):
            for name in ("cat", "dog"):
                save(tmp_path / part / client / name / "0.png", shade)
    with pytest.raises(ValueError, match=r"'oslo' is a client and these are classes, pass --client folder"):
        load_dataset(tmp_path)
    data = load_dataset(tmp_path, client="folder")
    assert data.classes == ("cat", "dog")
    assert data.client_names == ("oslo", "rome")
    assert data.client_ids is not None
    assert np.array_equal(data.x_train[:, 0, 0, 0], data.client_ids)


@pytest.mark.parametrize("inside", [True, False])
def test_a_table_says_whose_each_file_is(tmp_path: Path, inside: bool) -> None:
    folder = tmp_path / "photos"
    for i in range(8):
        save(folder / "cat" / f"{i}.png", i)
        save(folder / "dog" / f"{i}.png", i)
    lines = [f"{name}/{i}.png,p{i % 2}" for name in ("dog", "cat") for i in range(8)]
    table = (folder if inside else tmp_path) / "who.csv"
    table.write_text("\n".join(["file,client", *lines]))
    data = load_dataset(folder, client="who.csv" if inside else str(table))
    assert data.client_names == ("p0", "p1")
    assert data.client_ids is not None
    assert np.array_equal(data.x_train[:, 0, 0, 0] % 2, data.client_ids)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,client\ncat/0.png,p\n", r"who\.csv names no client for 1 images, the first 'dog/0\.png'"),
        ("file,client\ncat/0.png,p\ndog/0.png,p\nowl.png,q\n", r"not in .*, the first 'owl\.png'"),
        ("file,client\ncat/0.png,p\ndog/0.png,\n", r"who\.csv.*'client', row 2"),
        ("file,client\ncat/0.png,p\ndog/0.png,p\ncat/0.png,q\n", r"names the file 'cat/0\.png' twice"),
        ("path,client\ncat/0.png,p\n", "must have the columns 'file' and 'client'; it has 'path', 'client'"),
    ],
)
def test_a_wrong_table_of_clients_is_refused(tmp_path: Path, content: str, message: str) -> None:
    for name in ("cat", "dog"):
        save(tmp_path / name / "0.png")
    (tmp_path / "who.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path, client="who.csv")


def test_a_client_that_is_neither_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "cat/0.png")
    with pytest.raises(ValueError, match=r"--client who .* is neither 'folder' .* nor a table"):
        load_dataset(tmp_path, client="who")


# Sizes and formats --------------------------------------------------------------------------------


def test_mixed_sizes_are_scaled_by_the_shorter_side_and_cut_at_the_centre(tmp_path: Path) -> None:
    """Stripes along the longer side show what is kept: the middle square of a wide and of a tall image."""
    stripes = np.repeat(np.array([10, 20, 30, 40], np.uint8), 16)
    wide, tall = np.tile(stripes, (32, 1)), np.tile(stripes, (32, 1)).T
    for name, pixels in (("a", wide), ("b", tall)):
        for i in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    with pytest.raises(ValueError, match=r"32x64 pixels but .* is 64x32.* --image-size N"):
        load_dataset(tmp_path)
    data = load_dataset(tmp_path, image_size=8, test_fraction=0.5)
    assert data.input_shape == (1, 8, 8)
    row = data.x_train[data.y_train == 0][0, 4, :, 0]
    column = data.x_train[data.y_train == 1][0, :, 4, 0]
    for line in (row, column):
        assert line[[0, 1, 2, 5, 6, 7]].tolist() == pytest.approx([20, 20, 20, 30, 30, 30], abs=1)
    assert data.encoding.image_size == 8


@pytest.mark.parametrize("size", [0, 10_000])
def test_a_size_out_of_range_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match=f"image_size = {size} is not allowed: it must be a whole number from 1"):
        load_dataset(tmp_path, image_size=size)


FORMATS = ["ppm", "pgm", "png", "bmp", "gif", "tif", "tga", "pcx", "jp2", "webp", "sgi", "ico"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_that_pillow_decodes_is_read(tmp_path: Path, suffix: str) -> None:
    needs = {"jp2": "jpg_2000", "webp": "webp"}.get(suffix)
    if needs and not features.check(needs):
        pytest.skip(f"Pillow was built without {needs}")
    assert f".{suffix}" in image_suffixes()
    for i in range(2):
        for name in ("a", "b"):
            options = {"sizes": [(16, 16)]} if suffix == "ico" else {"lossless": True} if suffix == "webp" else {}
            save(tmp_path / name / f"{i}.{suffix}", 50 * i, (16, 16), **options)
    data = load_dataset(tmp_path, test_fraction=0.5)
    assert set(np.concatenate([data.x_train, data.x_test])[..., 0].ravel()) == {0, 50}
