"""The tutorials are valid notebooks with the outputs of their cells, and they run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: it comes with fedwcm[dev]")
pytest.importorskip("nbclient", reason="nbclient is not installed: it comes with fedwcm[dev]")

from tools.execute_tutorials import NEEDS, TUTORIALS, executed  # noqa: E402

name_of: Any = {"ids": lambda path: path.stem}

NOISE = {
    "an absolute path": re.compile(r"(?<![\w.:/<])/[A-Za-z][\w.-]*/\w|\b[A-Z]:\\"),
    "a timing": re.compile(r"\d\s?(s|ms|µs|min|sec|it/s|s/it)\b|second|s/round"),
    "a progress bar": re.compile(r"\r|\d%\|"),
    "an address in memory": re.compile(r"0x[0-9a-f]{6,}"),
}
"""What an output would have of the machine that it was made on, or of that moment."""

LARGEST = 60_000
"""Bytes of a stored notebook: text, a table, a small plot."""


@pytest.mark.parametrize("path", TUTORIALS, **name_of)
def test_tutorial_is_valid_and_its_outputs_are_small_in_order_and_without_noise(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ")
    cells = _code(notebook)
    for cell in cells:
        compile(cell.source, f"{path.name}:{cell.id}", "exec")
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell.outputs for cell in cells)
    assert path.stat().st_size < LARGEST
    assert _complaints(notebook) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("wrote /home/me/runs/report.html", "an absolute path"),
        ("PosixPath('/tmp/x')", "an absolute path"),
        ("done in 3.2 s", "a timing"),
        ("seconds_per_round=0.1", "a timing"),
        (" 50%|█████     | 5/10", "a progress bar"),
        ("<object at 0x7f12ab34cd56>", "an address in memory"),
    ],
)
def test_noise_is_recognised(text: str, complaint: str) -> None:
    assert complaint in _noise(text)
    assert _noise("final 0.813 ± 0.028 in runs/digits/report.html, s 3 rows, 5 steps</td>\n</tr>") == []


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, **name_of)
def test_tutorial_runs_and_prints_what_is_stored(path: Path) -> None:
    """Numbers may differ from machine to machine in their last digits, and are not compared."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: it comes with fedwcm[dev]")
    pytest.importorskip("pandas", reason="pandas is not installed: it comes with fedwcm[dev]")
    # Its first import may build a cache of fonts and say so on stderr: not in the notebook.
    pytest.importorskip(
        "matplotlib.font_manager", reason="matplotlib is not installed: it comes with fedwcm[report]"
    )
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package)
    stored, fresh = nbformat.read(path, as_version=4), executed(path)
    assert _complaints(fresh) == []
    for before, after in zip(_code(stored), _code(fresh), strict=True):
        assert [_words(output) for output in after.outputs] == [_words(output) for output in before.outputs]


def _code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:  # type: ignore[name-defined]
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _complaints(notebook: nbformat.NotebookNode) -> list[str]:  # type: ignore[name-defined]
    """What is wrong with a notebook's outputs, by cell."""
    found = []
    for cell in _code(notebook):
        outputs = cell.outputs
        kinds = {output.output_type for output in outputs} | {output.get("name") for output in outputs}
        found += [f"{cell.id}: {kind}" for kind in ("error", "stderr") if kind in kinds]
        found += [f"{cell.id}: {noise}" for output in outputs for text in _texts(output) for noise in _noise(text)]
        found += [f"{cell.id}: {key} in the metadata" for key in cell.metadata]
    return found


def _noise(text: str) -> list[str]:
    return [what for what, pattern in NOISE.items() if pattern.search(text)]


def _texts(output: nbformat.NotebookNode) -> Iterator[str]:  # type: ignore[name-defined]
    if output.output_type == "stream":
        yield output.text
    yield from (value for kind, value in output.get("data", {}).items() if kind.startswith("text/"))


def _words(output: nbformat.NotebookNode) -> str:  # type: ignore[name-defined]
    """The printed text without its numbers and spaces; of what is shown otherwise, the kinds of media."""
    if output.output_type == "stream":
        return re.sub(r"[\d.,]+|\s+", " ", output.text)
    return " ".join(sorted(output.data))
