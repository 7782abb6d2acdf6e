"""Data too large to be copied: read as they are stored, mapped from files, and prepared batch by batch."""

import errno
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib.format import open_memmap
from torch import Tensor, nn

import fedwcm
from fedwcm.core.batch import LazyInputs
from fedwcm.data import inputs as inputs_module
from fedwcm.data import load_dataset
from fedwcm.data.fingerprint import fingerprint
from fedwcm.data.formats.arrays import read_npy_folder
from fedwcm.data.formats.safety import reading
from fedwcm.data.inputs import Normalizer, model_inputs
from fedwcm.data.read_options import ReadOptions

CPU = torch.device("cpu")
rng = np.random.default_rng(0)
Arrays = dict[str, Any]


def images(n: int = 120, channels: int = 3) -> Arrays:
    y = rng.integers(3, size=2 * n)
    x = (rng.integers(100, size=(2 * n, 6, 5, channels)) + 50 * y[:, None, None, None]).astype(np.uint8)
    return {"x_train": x[:n], "y_train": y[:n], "x_test": x[n:], "y_test": y[n:]}


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """All data count as large."""
    monkeypatch.setattr(inputs_module, "PREPARED_BYTES", 0)


def run(source: Any, method: str = "fedwcm", **options: Any) -> fedwcm.Result:
    chosen = {"rounds": 2, "epochs": 1, "clients": 4, "participation": 0.5, "batch_size": 8, "imbalance": 0.5}
    return fedwcm.run(method, dataset=source, **{**chosen, **options})


@pytest.mark.parametrize(
    "x",
    [
        rng.integers(256, size=(30, 4, 5, 3)).astype(np.uint8),
        rng.normal(size=(30, 4, 5, 1)).astype(np.float32),
        rng.integers(-5, 900, size=(30, 7)).astype(np.int16),
        rng.normal(size=(30, 6, 2)).astype(np.float32),
    ],
    ids=lambda x: f"{x.dtype}{x.ndim}",
)
def test_what_is_read_late_is_equal_to_the_bit_to_what_is_prepared_early(x: Any) -> None:
    before, rows = x.copy(), np.array([3, 1, 20, 3])
    for normalizer in (Normalizer.fit(x), Normalizer(np.zeros(1, np.float32), np.ones(1, np.float32))):
        found = model_inputs(x, normalizer, CPU, rows, prepared=False)
        assert isinstance(found, LazyInputs)
        expected = torch.from_numpy(normalizer(x))
        assert torch.equal(found[5:12], expected[5:12])
        late = found.index_select(0, torch.from_numpy(rows))
        assert torch.equal(late, expected[rows])
        assert late.is_contiguous()
    assert np.array_equal(x, before)


def test_statistics_of_some_rows_are_those_of_a_copy_of_them() -> None:
    x, rows = rng.integers(256, size=(2500, 3, 2, 1)).astype(np.uint8), rng.permutation(2500)[:2100]
    one, other = Normalizer.fit(x, rows), Normalizer.fit(x[rows])
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.std, other.std)
    np.testing.assert_allclose(one.std, x[rows].std(axis=(0, 1, 2)), rtol=1e-6)


@pytest.mark.parametrize(
    ("val_fraction", "options"),
    [(0.2, {"model": "mlp"}), (0.0, {"model": "cnn", "augment": True, "backend": "parallel"})],
)
def test_a_run_on_large_data_is_that_on_small_data_to_the_bit(
    val_fraction: float, options: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images()
    early = run(source, val_fraction=val_fraction, **options)
    monkeypatch.setattr(inputs_module, "PREPARED_BYTES", 0)
    late = run(source, val_fraction=val_fraction, **options)
    for name, value in early.model.state_dict().items():
        assert torch.equal(late.model.state_dict()[name], value), name
    assert [r.test_loss for r in late.history] == [r.test_loss for r in early.history]


class Tokens(nn.Module):
    """A model that looks integers up."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embed(x).mean(dim=1))
        return scores


def test_integers_for_an_embedding_stay_as_narrow_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rng.integers(20, size=(90, 5)).astype(np.uint8), rng.integers(3, size=90)
    module = Tokens()
    early = run((x, y), "fedavg", model=module).model.state_dict()
    monkeypatch.setattr(inputs_module, "PREPARED_BYTES", 0)
    late = run((x, y), "fedavg", model=module).model.state_dict()
    assert all(torch.equal(late[name], value) for name, value in early.items())


def is_mapped(x: Any) -> bool:
    """Whether an array's memory is that of a file."""
    below = x.obj if isinstance(x, memoryview) else getattr(x, "base", None)
    return isinstance(x, mmap.mmap) or (below is not None and is_mapped(below))


def save_folder(path: Path, arrays: Arrays) -> Path:
    path.mkdir()
    for name, values in arrays.items():
        np.save(path / f"{name}.npy", values)
    return path


@pytest.mark.usefixtures("lazy")
def test_a_folder_of_npy_files_is_mapped_and_trains_as_the_npz_file(tmp_path: Path) -> None:
    arrays: Any = {**images(), "classes": np.array(["a", "b", "c"])}
    folder = save_folder(tmp_path / "set", arrays)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    np.savez(tmp_path / "set.npz", **arrays)
    mapped, read = load_dataset(folder), load_dataset(tmp_path / "set.npz")
    assert is_mapped(mapped.x_train)
    assert is_mapped(mapped.x_test)
    assert not is_mapped(read.x_train)
    assert mapped.classes == ("a", "b", "c")
    assert fingerprint(mapped) == fingerprint(read)
    one, other = run(str(folder), out=tmp_path / "run"), run(str(tmp_path / "set.npz"))
    assert all(torch.equal(v, other.model.state_dict()[k]) for k, v in one.model.state_dict().items())
    measured = fedwcm.evaluate(tmp_path / "run")
    assert measured.test_accuracy == one.history[-1].test_accuracy
    assert len(fedwcm.predict(tmp_path / "run", folder).ids) == 240
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_files_larger_than_memory_are_mapped(tmp_path: Path) -> None:
    """They are holes here, which take no room on the disk; a mapping that could be written to would be refused."""
    width = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10
    for part, rows in (("train", 10), ("test", 2)):
        open_memmap(tmp_path / f"x_{part}.npy", mode="w+", dtype=np.uint8, shape=(rows, width))
        np.save(tmp_path / f"y_{part}.npy", np.arange(rows) % 2)
    parts = read_npy_folder(tmp_path, ReadOptions())
    assert is_mapped(parts.train.x)
    assert parts.train.x.shape == (10, width)


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_a_test_part_is_drawn_without_a_second_copy_and_is_the_same_as_ever(tmp_path: Path, kind: str) -> None:
    x, y = rng.integers(256, size=(2300, 3, 2)).astype(np.uint8), rng.integers(3, size=2300)
    expected = load_dataset((x, y), seed=4)
    if kind == "npz":
        np.savez(tmp_path / "set.npz", x=x, y=y)
    else:
        save_folder(tmp_path / "set", {"x": x, "y": y})
    found = load_dataset(tmp_path / ("set.npz" if kind == "npz" else "set"), seed=4)
    for part in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))
    assert fingerprint(found) == fingerprint(expected)


def test_a_bad_npy_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "set", images())
    content = (folder / "x_train.npy").read_bytes()
    (folder / "x_train.npy").write_bytes(content[:-10])
    with pytest.raises(ValueError, match=r"x_train\.npy holds .* bytes, which do not fit its shape"):
        load_dataset(folder)
    np.save(folder / "x_train.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"x_train\.npy is of type object"):
        load_dataset(folder)
    (folder / "x_train.npy").unlink()
    with pytest.raises(ValueError, match="lacks x_train"):
        load_dataset(folder)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_data_that_do_not_fit_into_memory_are_not_called_damaged_alone(error: Exception) -> None:
    message = r"set\.npz is damaged, or does not fit into memory: as a folder"
    with pytest.raises(ValueError, match=message), reading("set.npz"):
        raise error


PEAK = """
import json, resource, sys
import numpy as np, torch, fedwcm

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def run(source, clients):
    fedwcm.run("fedavg", dataset=source, clients=clients, model="mlp", participation=1.0, rounds=1, epochs=1,
               imbalance="none", backend="sequential", settings={"model.hidden": [4]})

small = np.random.default_rng(0).integers(256, size=(300, 32, 32, 3)).astype(np.uint8), np.arange(300) % 10
run(small, 3)
before = peak()
run(sys.argv[1], 20)
print(json.dumps(peak() - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("kind", "limit"), [("npz", 2.0), ("whole npz", 2.0), ("npy", 1.3)])
def test_peak_memory_is_bounded_by_the_size_of_the_file(tmp_path: Path, kind: str, limit: float) -> None:
    n = 100_000  # so that what is taken once whatever the size, some 50 MB, does not decide
    x, y = rng.integers(256, size=(n, 32, 32, 3), dtype=np.uint8), np.arange(n) % 10
    cut = n * 9 // 10
    arrays: Any = {"x_train": x[:cut], "y_train": y[:cut], "x_test": x[cut:], "y_test": y[cut:]}
    if kind == "npy":
        source = save_folder(tmp_path / "set", arrays)
    else:
        source = tmp_path / "set.npz"
        np.savez(source, **({"x": x, "y": y} if kind == "whole npz" else arrays))
    ran = subprocess.run([sys.executable, "-c", PEAK, str(source)], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) <= limit * x.nbytes
