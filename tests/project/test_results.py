"""The pages of results say what their scripts compute."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tools import measure_cifar10, measure_gain, measure_readings, measure_table1, measure_theory
from tools.generated import write_blocks

from fedwcm.methods.fedwcm import FedWCM
from fedwcm.reproduction.command import reproduce
from fedwcm.reproduction.pages import WRITTEN_BY
from fedwcm.reproduction.presets import Scope
from fedwcm.reproduction.table import rows_of_paper

FASHION = [("fashion-mnist", factor) for factor in (1, 0.5, 0.1, 0.05, 0.01)]
CIFAR = [("cifar10", factor) for factor in (1, 0.5, 0.4, 0.1, 0.06, 0.05, 0.04, 0.01)]


def test_the_gain_agrees_with_every_row_of_fashion_mnist_and_cifar10() -> None:
    rows = [*FASHION, *CIFAR]
    assert all(measure_gain.agrees(measure_gain.gain(*row), measure_gain.paper(*row)) for row in rows)
    assert not all(measure_gain.agrees(0.9, measure_gain.paper(*row)) for row in rows)


def test_a_collapse_is_what_the_paper_underlines() -> None:
    rows = [row for name in ("table1", "table4") for row in rows_of_paper(name) if row["method"] == "FedCM"]
    rows = [row for row in rows if row.get("dataset", "cifar10") in ("fashion-mnist", "cifar10", "svhn")]
    for row in rows:
        assert (float(row["accuracy"]) < measure_gain.COLLAPSED) == (row["underlined"] == "yes"), row


def test_the_tables_on_the_page_are_those_of_the_script() -> None:
    text = measure_gain.PAGE.read_text(encoding="utf-8")
    rows = [*FASHION, *CIFAR]
    for lines in (measure_gain._table(rows), measure_gain._remainder(rows), measure_gain._collapsed()):
        assert "\n".join(lines) in text


def test_the_papers_fedwcm_is_highest_in_39_of_50_cells() -> None:
    blocks = [measure_table1.printed(name) for name in measure_table1.DATASETS]
    assert [measure_table1.highest(block) for block in blocks] == [0, 9, 10, 10, 10]
    assert sum(map(len, blocks)) == 50


def test_the_tables_of_cifar10_are_those_of_the_runs() -> None:
    text = (measure_cifar10.ROOT / "docs" / "results" / "cifar10.md").read_text(encoding="utf-8")
    stored = measure_cifar10.runs(measure_cifar10.ROOT / "results")
    for lines in (
        measure_cifar10._differences(stored),
        measure_cifar10._rounds(stored),
        measure_cifar10._resnets(),
    ):
        assert "\n".join(lines) in text


def test_a_page_says_which_fedcm_it_has(tmp_path: Path) -> None:
    def is_said(method: str) -> bool:
        pages = reproduce(
            "table4", methods=[method], dataset=["digits"], results=tmp_path, pages_only=True, say=str
        )
        return "(`fedcm-nominal`)" in pages.markdown.read_text(encoding="utf-8")

    assert is_said("FedCM")
    assert not is_said("fedcm")
    texts = [page.read_text(encoding="utf-8") for page in measure_gain.PAGE.parent.glob("*.md")]
    tables = [text for text in texts if WRITTEN_BY in text and "| FedCM |" in text]
    assert len(tables) > 20
    assert all("(`fedcm-nominal`)" in text for text in tables)


def test_what_is_said_of_one_client_follows_from_the_tables() -> None:
    text = (measure_cifar10.ROOT / "docs" / "one-client.md").read_text(encoding="utf-8")

    def rows(block: str) -> dict[str, list[float]]:
        lines = text.split(f"<!-- {block} -->")[1].split("<!-- end")[0].strip().splitlines()[2:]
        cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
        return {name: [float(value.split()[0]) for value in values] for name, *values in cells}

    both, centered, median = "both (the default on Flower)", "both, `rule = centered`", "both, `rule = median`"
    free = "none (the simulator's default)"
    for method, lost in (("fedwcm", 0.13), ("fedavg", 0.08)):
        table = rows(method)
        honest, *attacked = table[both]
        assert honest == table[free][0]
        assert round(honest - min(attacked[0], attacked[2]), 2) == lost
        assert 0.01 <= round(honest - table[centered][0], 2) <= 0.02
        assert 0.06 <= round(honest - table[median][0], 2) <= 0.08
        others = [row for name, row in table.items() if "rule" in name and name != centered]
        better = [k for row in others for k in range(1, 5) if row[k] > table[centered][k]]
        assert better == ([2] if method == "fedwcm" else [])
        assert max(max(table[name][1:]) for name in (free, "`max_share = 0.2`")) == 0.1
    once, always = rows("backdoor once"), rows("backdoor")
    assert min(once[free][1], once[free][4]) > 0.7
    assert {once[both][k] for k in (1, 2, 4, 5)} == {0.01, 0.02}
    assert min(row[1] for row in always.values()) == always[median][1] < always[both][1] / 2


def test_on_quadratics_fedwcm_ends_at_the_minimum_of_its_weighted_mean() -> None:
    counts = measure_theory.client_counts(0.1)
    task = measure_theory.Quadratics(counts, FedWCM())
    weighted = torch.from_numpy(measure_theory.weights_of(counts, 0.25)) @ task.centres
    end = task.run(150, task.mean)[-1]
    assert (end - weighted).norm() < 1e-3 < 1e-2 < (end - task.mean).norm()


def test_the_lemma_on_the_weights_is_false_as_printed() -> None:
    """At the minimum of f the plain mean of ∇f over the local iterates is ∇f(x_r), the weighted mean is not."""
    counts = measure_theory.client_counts(0.1)
    centres = counts / counts.sum(axis=1, keepdims=True)
    x, lr = centres.mean(axis=0), 0.1
    local = np.repeat(x[None], len(centres), axis=0)
    drift = np.zeros_like(local)
    for _ in range(5):
        drift += local - x  # ∇f(local) − ∇f(x) of f(x) = mean of ½‖x − c_i‖²
        local = local - lr * (local - centres)
    assert np.linalg.norm(drift.mean(axis=0)) < 1e-12
    assert np.linalg.norm(measure_theory.weights_of(counts, 0.25) @ drift) > 1e-3


def test_a_block_without_a_place_is_an_error(tmp_path) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n")
    write_blocks(page, {"a": ["new"]})
    assert page.read_text() == "before\n<!-- a -->\n\nnew\n\n<!-- end of a -->\nafter\n"
    with pytest.raises(ValueError, match="'b'"):
        write_blocks(page, {"b": []})


def test_a_reading_is_compared_with_the_default_at_the_same_place_and_seed() -> None:
    places = [(("0.1", "0.6"), 10), (("0.1", "0.6"), 11), (("1.0", "0.1"), 10)]
    default = dict(zip(places, (0.5, 0.7, 0.9), strict=True))
    better = {place: value + 0.01 for place, value in default.items() if place[1] == 10}
    text = measure_readings.lines(Scope(dataset=["digits"], seeds=[10, 11]), {"default": default, "other": better})
    assert text[-2] == "| default, accuracy | 0.900 | 0.600 |  |"
    assert text[-1] == "| other | +1.0 | +1.0 | – |"  # one seed: its two places are one unit
    better |= {places[1]: default[places[1]] + 0.03}
    text = measure_readings.lines(Scope(dataset=["digits"], seeds=[10, 11]), {"default": default, "other": better})
    assert text[-1].endswith("| +2.00 [-10.71, +14.71] |")  # of the place that both seeds have
    assert measure_readings.lines(Scope(dataset=["digits"]), {}) == ["Not run yet."]
