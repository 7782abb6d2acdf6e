"""Downloads, against a server on this machine."""

import hashlib
import io
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedwcm.data import DATASETS, NamedDataset, load_dataset
from fedwcm.data.named import RemoteFile, fetch, read_named


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return a folder with a small SVHN in it."""
    folder = tmp_path / "published"
    folder.mkdir()
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", {"X": x, "y": np.arange(1, 21).reshape(-1, 1) % 10 + 1})
    return folder


@pytest.fixture
def server(published: Path) -> Iterator[ThreadingHTTPServer]:
    handler = partial(QuietHandler, directory=str(published))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def remote_files(server: ThreadingHTTPServer, published: Path) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(
            f"http://127.0.0.1:{server.server_port}/{file.name}",
            f"md5:{hashlib.md5(file.read_bytes()).hexdigest()}",
            f"svhn/{file.name}",
        )
        for file in sorted(published.iterdir())
    )


@pytest.fixture
def entry(server: ThreadingHTTPServer, published: Path, monkeypatch: pytest.MonkeyPatch) -> NamedDataset:
    files = remote_files(server, published)
    digests = {Path(file.path).name: file.checksum.removeprefix("md5:") for file in files}
    monkeypatch.setattr("fedwcm.data.formats.published.SVHN_CHECKSUMS", digests)
    return replace(DATASETS["svhn"], downloads=files)


def test_what_is_missing_is_downloaded_once_and_found_afterwards(tmp_path: Path, entry: NamedDataset) -> None:
    target = tmp_path / "data"
    first = read_named("svhn", entry, [target], target)
    again = read_named("svhn", entry, [target], None)
    assert np.array_equal(first.train.x, again.train.x)
    assert sorted(f.name for f in (target / "svhn").iterdir()) == ["test_32x32.mat", "train_32x32.mat"]


def test_a_download_that_stopped_half_way_is_completed(tmp_path: Path, entry: NamedDataset) -> None:
    fetch(entry.downloads[0], tmp_path)
    assert len(read_named("svhn", entry, [tmp_path], tmp_path).train.y) == 20  # type: ignore[arg-type]


def test_a_file_with_the_wrong_checksum_is_refused_and_not_kept(tmp_path: Path, entry: NamedDataset) -> None:
    bad = replace(entry, downloads=(replace(entry.downloads[0], checksum="md5:" + "0" * 32),))
    target = tmp_path / "data"
    with pytest.raises(ValueError, match="is not the published file and was not kept"):
        read_named("svhn", bad, [target], target)
    assert [file for file in target.rglob("*") if file.is_file()] == []


def test_without_a_server_the_error_says_what_to_put_where(
    tmp_path: Path, entry: NamedDataset, server: ThreadingHTTPServer
) -> None:
    server.shutdown()
    server.server_close()
    target, other = tmp_path / "data", tmp_path / "other"
    with pytest.raises(FileNotFoundError) as caught:
        read_named("svhn", entry, [target, other], target)
    text = str(caught.value)
    for expected in (
        entry.downloads[0].url,
        str(target / "svhn/train_32x32.mat"),
        str(target / "svhn/test_32x32.mat"),
        f"Looked in {target}, {other} for svhn.npz, svhn",
        "FEDWCM_DATA",
        "--data-dir",
    ):
        assert expected in text
    assert isinstance(caught.value.__cause__, OSError)


def test_a_file_the_server_does_not_have_is_a_failed_download(tmp_path: Path, entry: NamedDataset) -> None:
    file = replace(entry.downloads[0], url=entry.downloads[0].url + ".gone")
    with pytest.raises(OSError, match=r"download of .*\.gone failed: 404"):
        fetch(file, tmp_path)
    assert list((tmp_path / "svhn").iterdir()) == []


def test_nothing_is_downloaded_when_downloading_is_off(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar100 was not found .* switched off") as caught:
        load_dataset("cifar100", data_dir=tmp_path / "data", download=False)
    assert str(tmp_path / "data" / "cifar-100-binary.tar.gz") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_progress_is_shown_only_on_a_terminal(
    tmp_path: Path, entry: NamedDataset, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    fetch(entry.downloads[0], tmp_path)
    assert ("100%" in stream.getvalue()) is shown
