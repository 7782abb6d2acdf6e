"""The path of a preset from its TOML file to the table, at a tiny fraction; and the laws of its parts."""

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwcm.cli import main
from fedwcm.config.recipes import RECIPE_SETS, expand_sets
from fedwcm.config.settings import Settings
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.engine.server import RoundMeasures
from fedwcm.reproduction.command import listing, reproduce
from fedwcm.reproduction.estimate import seconds_here, seconds_on_gpu, stored_rates
from fedwcm.reproduction.pages import command_line
from fedwcm.reproduction.presets import (
    Cell,
    Scope,
    chosen_methods,
    expand,
    load_preset,
    preset_names,
    split_labels,
)
from fedwcm.reproduction.store import ResultStore, read_run
from fedwcm.reproduction.table import PaperTable, rows_of_paper

TINY = Scope(
    dataset=["digits"],
    methods=["FedWCM"],
    seeds=[0],
    fraction=0.004,
    settings={"partition.clients": 5, "local.epochs": 1},
)


def run(name: str, folder: Path, scope: Scope = TINY, *, start: bool = True) -> tuple[str, list[str]]:
    """The table, and what was said."""
    message: list[str] = []
    pages = reproduce(
        name,
        **vars(scope),
        results=folder / "results",
        work=folder / "work",
        pages_only=not start,
        say=message.append,
    )
    assert pages.markdown.read_text().startswith("# ")
    return pages.table, message


def test_every_preset_expands_to_runs_whose_options_all_exist() -> None:
    for name in preset_names():
        preset = load_preset(name)
        cells = expand(preset, Scope()) if preset.kind == "training" else []
        for cell in {(c.settings["method.name"], c.settings.get("loss.name")): c for c in cells}.values():
            cell.resolve()
        assert len({cell.fingerprint for cell in cells}) == len(cells)
        if cells:
            assert set(preset.rows) | set(preset.columns) <= set(cells[0].point)
            assert not rows_of_paper(name) or PaperTable(name).accuracy(cells[0].point) is not None


def test_the_presets_are_linked_from_the_configurations() -> None:
    links = Path(__file__).parents[2] / "configs" / "paper"
    assert sorted(link.stem for link in links.glob("*.toml")) == sorted([*preset_names(), "common"])
    assert all(link.exists() for link in links.iterdir())


def test_table_1_is_the_papers_and_its_settings_too() -> None:
    cells = expand(load_preset("table1"), Scope())
    assert len(cells) == 5 * 5 * 2 * 7 * 3
    paper = PaperTable("table1")
    assert all(paper.accuracy(cell.point) is not None for cell in cells)
    last = cells[-1].settings
    assert (last["partition.clients"], last["run.rounds"], last["model.name"]) == (40, 300, "resnet34")
    assert (last["local.clip"], last["local.weight_decay"], last["local.lr_decay"]) == (10.0, 0.001, 0.998)


def test_cells_that_two_tables_of_the_paper_share_agree_where_they_should() -> None:
    """Appendix D.2 repeats Table 1's CIFAR-10 block and Table 2: a typing error would break one of the copies."""
    whole, one, two = (PaperTable(name) for name in ("appendix-d2", "table1", "table2"))
    for row in rows_of_paper("appendix-d2"):
        copies = {table.accuracy(row) for table in (whole, one, two)} - {None}
        assert len(copies) == 1, row


def test_a_preset_runs_is_not_run_again_and_shows_what_is_missing(tmp_path: Path) -> None:
    before, message = run("table3", tmp_path, start=False)
    assert "not run" in before
    assert "0 done" in message[0]
    table, _ = run("table3", tmp_path)
    assert "not run" not in table
    assert not list((tmp_path / "work").glob("*/config.toml"))  # what is stored is not kept twice
    again, message = run("table3", tmp_path)
    assert again == table
    assert "nothing left" in message[0]


def test_more_rounds_go_on_from_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def accuracies(folder: str, fraction: float, *, keep: bool) -> list[float]:
        scope, root = replace(TINY, fraction=fraction), tmp_path / folder
        reproduce("figure8", **vars(scope), results=root, work=root / "work", keep=keep, say=str)
        (cell,) = expand(load_preset("figure8"), scope)
        archive = ResultStore(root).find(cell) or Path("missing")
        assert "environment.json" in zipfile.ZipFile(archive).namelist()
        return [record.test_accuracy for record in read_run(archive).history]  # type: ignore[misc]

    whole = accuracies("whole", 0.008, keep=False)
    part = accuracies("parts", 0.004, keep=True)
    played: list[int] = []
    step = Rounds.step

    def noted(self: Rounds, before: ServerState, **options: bool) -> tuple[ServerState, RoundMeasures]:
        played.append(before.round)
        return step(self, before, **options)

    monkeypatch.setattr(Rounds, "step", noted)
    assert accuracies("parts", 0.008, keep=False) == whole
    assert played == [2, 3]
    assert (part, len(whole)) == (whole[:2], 4)
    assert not list((tmp_path / "parts" / "work").glob("*/config.toml"))


def test_a_run_that_would_have_begun_differently_does_not_go_on_from_what_was_kept(tmp_path: Path) -> None:
    for fraction, kept in ((0.004, 1), (0.008, 2)):
        scope = replace(scope_of("FedWCM", loss__name="ldam"), fraction=fraction)
        reproduce("figure8", **vars(scope), results=tmp_path, work=tmp_path, keep=True, say=str)
        assert len(list(tmp_path.glob("*/config.toml"))) == kept


def test_a_cell_whose_default_has_changed_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("figure8", tmp_path)
    (cell,) = expand(load_preset("figure8"), TINY)
    assert ResultStore(tmp_path / "results").find(cell) is not None
    now = cell.resolve()
    monkeypatch.setattr(Cell, "resolve", lambda self: {**now, "method.temperature_scale": 7.0})
    assert ResultStore(tmp_path / "results").find(cell) is None
    monkeypatch.setattr(Cell, "resolve", lambda self: {**now, "method.an_option_of_tomorrow": 1})
    assert ResultStore(tmp_path / "results").find(cell) is not None


def test_a_page_of_other_settings_has_another_name_and_says_so(tmp_path: Path) -> None:
    def page(settings: dict[str, object]) -> Path:
        scope = Scope(dataset=["fashion-mnist"], fraction=0.02, settings=settings)
        return reproduce(
            "figure8", **vars(scope), results=tmp_path, work=tmp_path / "work", pages_only=True, say=str
        ).markdown

    plain, other = page({}), page({"model.name": "cnn"})
    assert (plain.name, other.name) == (
        "figure8-fashion-mnist-0.02.md",
        "figure8-fashion-mnist-model.name-cnn-0.02.md",
    )
    assert "**Not as in the paper: fashion-mnist instead of cifar10, 2 % of the rounds**" in plain.read_text()
    assert "fashion-mnist instead of cifar10, 2 % of the rounds, `model.name` cnn**" in other.read_text()


def test_a_page_that_another_command_wrote_is_not_replaced_without_a_word(tmp_path: Path) -> None:
    both = replace(TINY, methods=["FedAvg", "FedWCM"])
    run("figure8", tmp_path, both, start=False)
    with pytest.warns(UserWarning, match=r'figure8.*\.md was written by .*--methods "FedAvg,FedWCM"'):
        run("figure8", tmp_path, TINY, start=False)
    run("figure8", tmp_path, TINY, start=False)


def test_every_figure_of_a_page_has_a_caption_that_tells_it_from_the_others(tmp_path: Path) -> None:
    pages = reproduce("appendix-b", **vars(TINY), results=tmp_path, work=tmp_path / "work", say=str)
    captions = [
        line for line in pages.markdown.read_text().splitlines() if line.startswith("*") and line.endswith("*")
    ]
    assert "*imbalance 0.1: neuron concentration by layer*" in captions
    assert len(set(captions)) == len(pages.figures) == 3
    assert "layers-imbalance-0.1.png" in pages.figures[-1].name


def test_a_part_of_an_axis_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    preset, part = load_preset("table1"), Scope(dataset=["cifar10"], only={"imbalance": ["0.1"], "beta": ["0.6"]})
    cells = expand(preset, part)
    whole = {cell.fingerprint for cell in expand(preset, Scope(dataset=["cifar10"]))}
    assert len(cells) == 7 * 3
    assert {cell.fingerprint for cell in cells} < whole
    assert command_line(preset, part).endswith("--only imbalance=0.1 --only beta=0.6")
    for wrong, allowed in (("imbalance=7", "0.01"), ("noise=1", "imbalance"), ("imbalance", "AXIS=VALUE")):
        assert main(["reproduce", "table1", "--only", wrong]) == 2
        assert allowed in capsys.readouterr().err
    assert main(["reproduce", "--list", "--only", "beta=0.1"]) == 2


def scope_of(method: str, **settings: object) -> Scope:
    """A tiny part of Figure 8: a method, and options on top of the usual ones, with `__` for the dot."""
    options = {key.replace("__", "."): value for key, value in settings.items()}
    return replace(TINY, methods=[method], settings={**(TINY.settings or {}), **options})


def find(folder: Path, method: str, **settings: object) -> Path | None:
    """The stored run of a method with these options."""
    (cell,) = expand(load_preset("figure8"), scope_of(method, **settings))
    return ResultStore(folder / "results").find(cell)


def test_a_run_is_found_by_what_it_was_not_by_how_it_was_asked_for(tmp_path: Path) -> None:
    run("figure8", tmp_path, scope_of("fedcm", local__drop_last=True))
    assert find(tmp_path, "fedcm", local__drop_last=True) is not None
    assert find(tmp_path, "fedcm") is None
    run("figure8", tmp_path, scope_of("fedcm"))
    assert find(tmp_path, "fedcm") == find(tmp_path, "fedcm[alpha=0.1]") is not None
    assert find(tmp_path, "fedcm[alpha=0.2]") is None
    assert find(tmp_path, "fedcm", local__clip=None) is None  # set then, unset now
    assert find(tmp_path, "fedcm", data__n_max=50) is None  # unset then, set now


def test_auto_is_found_by_what_it_becomes_and_by_nothing_else(tmp_path: Path) -> None:
    held = {"model__name": "cnn", "data__imbalance": 0.5, "partition__name": "fedgrab"}
    run("figure8", tmp_path, scope_of("FedAvg", **held))
    assert find(tmp_path, "FedAvg", **held)
    for key in held:
        assert not find(tmp_path, "FedAvg", **{**held, key: "auto"}), key
    auto = {"model__name": "auto", "data__imbalance": "auto"}
    run("figure8", tmp_path, scope_of("FedAvg", **auto))
    assert find(tmp_path, "FedAvg", **auto, partition__name="auto", partition__beta=0.6)
    assert find(tmp_path, "FedAvg", model__name="mlp", data__imbalance=0.1, partition__name="equal")


def test_a_run_on_own_data_is_found_again_until_the_data_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What becomes of `auto` there is in the data: a run is that of the cell for which it was stored."""
    monkeypatch.chdir(tmp_path)
    rows = "x,y\n" + "".join(f"{i % 7}.5,{i % 2}\n" for i in range(200))
    Path("own.csv").write_text(rows)
    own = replace(scope_of("FedWCM", data__label="y", data__imbalance="none"), dataset=["own.csv"])
    run("figure8", tmp_path, own)
    store, preset = ResultStore(tmp_path / "results"), load_preset("figure8")
    assert store.find(expand(preset, own)[0]) is not None
    other = replace(own, settings={**(own.settings or {}), "partition.name": "auto"})
    assert store.find(expand(preset, other)[0]) is None
    Path("own.csv").write_text(rows.replace("6.5", "9.5"))
    assert store.find(expand(preset, own)[0]) is None
    _, message = run("figure8", tmp_path, own)
    assert "1 left" in message[0]
    Path("own.csv").write_text(rows)
    assert "nothing left" in run("figure8", tmp_path, own)[1][0]


def test_the_fingerprint_is_of_what_changes_the_result() -> None:
    (cell,) = expand(load_preset("figure8"), scope_of("FedAvg"))
    named = Cell(cell.point, cell.seed, {**cell.settings, "run.name": "x", "run.backend": "sequential"})
    longer = Cell(cell.point, cell.seed, {**cell.settings, "run.rounds": 99})
    assert named.fingerprint == cell.fingerprint != longer.fingerprint


def test_labels_with_commas_are_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["FedCM, exact", "alpha by temperature, K clients", "default"]
    text = "default,FedCM, exact,fedwcm[q=off, score=local],fedavg"
    assert split_labels(text, labels) == ["default", "FedCM, exact", "fedwcm[q=off, score=local]", "fedavg"]
    words = ["--methods", "FedCM, exact", "--only", "sizes of=CIFAR-10, IF 0.1,SVHN, IF 1", "--only", "beta=0.6"]
    command = ["reproduce", "client-sizes", *words, "--results", str(tmp_path), "--pages-only"]
    assert main(command) == 0
    assert "2 runs, 0 done" in capsys.readouterr().out
    assert '--methods "FedCM, exact" --only "sizes of=CIFAR-10, IF 0.1,SVHN, IF 1"' in next(
        tmp_path.glob("*.md")
    ).read_text(encoding="utf-8")


def test_estimates_are_those_of_stored_runs() -> None:
    (cell,) = expand(load_preset("figure8"), scope_of("FedAvg"))

    class Stored:
        def run_times(self) -> Iterator[tuple[Settings, float]]:
            yield from ((cell.settings, seconds) for seconds in (50.0, 100.0, 9000.0))
            yield {**cell.settings, "local.no_such_option": 1}, 1.0

    assert seconds_here([cell], stored_rates(Stored())) == pytest.approx(100.0)  # type: ignore[arg-type]


def test_estimates_grow_with_the_work() -> None:
    cells = expand(load_preset("figure10"), Scope(dataset=["fashion-mnist"], methods=["FedAvg"], seeds=[0]))
    times = [seconds_here([cell]) or 0 for cell in cells]
    assert times == sorted(times)
    assert times[0] > 0
    assert (seconds_on_gpu(cells) or 0) > 0


def test_the_list_has_every_preset_and_counts_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {line.name: line for line in listing(Scope(dataset=["digits"], seeds=[0]), tmp_path)}
    assert set(lines) == set(preset_names())
    assert lines["table1"].cells == 5 * 2 * 7
    assert main(["reproduce", "no-such-table"]) == 2
    assert "table1" in capsys.readouterr().err


def test_runs_in_several_processes_say_which_of_all_come_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedwcm.reproduction.command.run_all", lambda *_: [])
    lines: list[str] = []
    reproduce(
        "figure10",
        dataset=["digits"],
        methods=["FedAvg"],
        seeds=[0, 1, 2],
        results=tmp_path,
        work=tmp_path / "work",
        jobs=2,
        say=lines.append,
    )
    assert lines[1:] == ["runs 1 to 8 of 12", "runs 9 to 12 of 12"]


def test_missing_data_is_named_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWCM_NATURAL", str(tmp_path))
    with pytest.raises(ValueError, match="set FEDWCM_NATURAL to the folder"):
        run("natural", tmp_path, Scope())
    x, y = np.zeros((40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "sites.npz", x_train=x, y_train=y, client_train=y, x_test=x, y_test=y)
    message = run("natural", tmp_path, Scope(methods=["FedAvg"], seeds=[0], fraction=0.01))[1]
    assert ["physionet.org" in line for line in message] == [True, *[False] * 4]
    assert [path.parent.name for path in (tmp_path / "results" / "cells").rglob("*.zip")] == ["sites.npz"]


def test_a_set_of_recipes_stands_for_its_members() -> None:
    assert expand_sets(["fedavg", "paper-rows"]) == ["fedavg", *RECIPE_SETS["paper-rows"]]
    assert len(RECIPE_SETS["paper-rows"]) == 4
    four = chosen_methods(load_preset("table1"), ["paper-rows"])
    assert list(four) == ["FedCM", "FedCM + Focal Loss", "FedCM + Balance Loss", "FedCM + Balance Sampler"]


def test_an_option_for_all_reaches_every_run_and_one_that_a_method_fixes_is_refused() -> None:
    preset = load_preset("figure8")
    (cell,) = expand(preset, scope_of("fedcm", method__alpha=0.3, run__eval_every=2))
    assert cell.resolve()["method.alpha"] == 0.3
    assert cell.resolve()["run.eval_every"] == 2
    with pytest.raises(ValueError, match=r"fedwcm\+longtail fixes server.ema"):
        expand(preset, scope_of("fedwcm+longtail", server__ema=0.5))
    with pytest.raises(ValueError, match=r"run\.seed is not for --set"):
        scope_of("fedcm", run__seed=3)


def test_a_method_of_ones_own_has_a_forecast() -> None:
    (cell,) = expand(load_preset("figure8"), replace(TINY, methods=["tests.specimens:Mime"]))
    assert seconds_here([cell]) is not None


@pytest.mark.parametrize("name", ["figure8", "appendix-b"])
def test_a_run_that_diverged_before_it_was_tested_is_shown_as_such(name: str, tmp_path: Path) -> None:
    table, _ = run(name, tmp_path, scope_of("fedavg", local__lr=1e30, local__clip=None, run__eval_every=2))
    assert "diverged" in table
    assert "not run" not in table
