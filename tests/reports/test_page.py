"""The page as a file: complete, small, and safe whatever names it shows."""

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.experiment.folder import RunFolder
from fedwcm.reports import paper, write
from fedwcm.reports.content import report_content
from fedwcm.reports.load import load_run, load_runs
from fedwcm.reports.page_table import breakable, sentence
from tests.reports.folders import LONG_NAME, configured, write_comparison, write_diverging_losses, write_run

EVIL = "</script><script>alert(1)"


class Elements(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data


def report_in(page: Path) -> dict[str, object]:
    """The data that a page carries."""
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', page.read_text("utf-8"), re.S)
    assert found
    report: dict[str, object] = json.loads(found[1])
    return report


def test_a_page_asks_for_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = fedwcm.report(write_comparison(tmp_path / "c"))
    elements = Elements(page.read_text("utf-8"))
    for tag, attributes in elements.tags:
        assert not attributes.get("src")
        assert (attributes.get("href") or "#").startswith(("#", "data:")), tag
    assert "default-src 'none'" in page.read_text("utf-8")
    assert "@import" not in page.read_text("utf-8")


def test_names_from_the_user_never_become_markup(tmp_path: Path) -> None:
    classes = (EVIL, "<img src=x onerror=alert(1)>", '"quoted" & more', "owl")
    plain = fedwcm.report(write_run(tmp_path / "plain"))
    evil = write_run(tmp_path / "evil", classes=classes, data__dataset=f"{EVIL}.csv")
    page = fedwcm.report(evil)
    ours, theirs = Elements(plain.read_text("utf-8")), Elements(page.read_text("utf-8"))
    assert [tag for tag, _ in theirs.tags] == [tag for tag, _ in ours.tags]
    assert len(theirs.scripts) == len(ours.scripts)
    figures = {figure["key"]: figure for figure in report_in(page)["figures"]}  # type: ignore[attr-defined]
    assert set(figures["split"]["row_labels"]) == set(classes)


def test_labels_of_a_comparison_never_become_markup(tmp_path: Path) -> None:
    out = write_comparison(tmp_path / "c", seeds=1)
    index = json.loads((out / "comparison.json").read_text())
    index["labels"]["m0-seed0"] = EVIL
    plain = Elements(fedwcm.report(out).read_text("utf-8"))
    (out / "comparison.json").write_text(json.dumps(index))
    page = fedwcm.report(out)
    tags = [tag for tag, _ in Elements(page.read_text("utf-8")).tags if tag != "wbr"]  # where a name may break
    assert tags == [tag for tag, _ in plain.tags]
    assert EVIL in report_in(page)["methods"]


def test_words_and_numbers_are_there_without_scripts(tmp_path: Path) -> None:
    page = fedwcm.report(write_comparison(tmp_path / "c", seeds=1)).read_text("utf-8")
    without = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    for path in (tmp_path / "c" / "runs").iterdir():
        assert f"{RunFolder(path).summary().final_accuracy:.3f}" in without


def test_the_best_of_each_column_is_bold_and_no_diverged_one(tmp_path: Path) -> None:
    out = write_comparison(tmp_path / "c", seeds=1)
    write_run(tmp_path / "c" / "runs" / "m2-seed0", "fedwcm", skill=1.0, rounds=40, diverged="NaN")
    page = fedwcm.report(out).read_text("utf-8")
    rows = re.findall(r'<tr data-method="\d+">.*?</tr>', page)
    finals = [RunFolder(out / "runs" / f"m{i}-seed0").summary().final_accuracy for i in range(3)]
    bold = [re.search(r"<strong>([\d.]+)</strong>", row.split("</td>")[0]) for row in rows]
    best = max(range(2), key=lambda i: finals[i])  # type: ignore[arg-type, return-value]
    numbers = [int(row.split('"')[1]) for row in rows]
    assert numbers == [best, 1 - best, 2]  # sorted, the diverged one last
    assert [number for number, found in zip(numbers, bold, strict=True) if found] == [best]
    assert "(diverged)" in rows[2]


def test_a_large_comparison_stays_below_two_megabytes(tmp_path: Path) -> None:
    """30 methods, 2 seeds, 100 evaluated rounds, 100 clients, 100 classes."""
    classes = tuple(f"class number {i}" for i in range(100))
    seeds = [write_run(tmp_path / str(s), "fedcm", s, rounds=100, clients=100, classes=classes) for s in range(2)]
    for i in range(30):
        for seed, made in enumerate(seeds):
            copied = RunFolder(tmp_path / "c" / f"{i}-{seed}")
            shutil.copytree(made, copied.path)
            copied.write_config(configured(f"fedcm[alpha={0.01 + i / 100:.2f}]", seed, 100, 100, {}))
    page = fedwcm.report(tmp_path / "c")
    assert len(report_in(page)["methods"]) == 30  # type: ignore[arg-type]
    assert page.stat().st_size < 2_000_000


def test_a_page_says_that_its_curves_are_thinned(tmp_path: Path) -> None:
    text = fedwcm.report(write_run(tmp_path / "long", rounds=500)).read_text("utf-8")
    assert "thinned to 200 of 500 evaluated rounds" in text


def test_a_page_is_made_of_its_folders_only(tmp_path: Path) -> None:
    out = write_comparison(tmp_path / "c")
    assert fedwcm.report(out).read_bytes() == fedwcm.report(out, tmp_path / "x" / "again.html").read_bytes()


def drawn_files(folder: Path, figures: Path) -> tuple[set[str], set[str]]:
    """The names of the files that are there, and of those that the figures of the page should have."""
    page = fedwcm.report(folder, figures=figures)
    shown: Any = report_in(page)["figures"]
    keys = [key for figure in shown for key in file_keys(figure)]
    return {path.name for path in figures.iterdir()}, {f"{key}.{kind}" for key in keys for kind in paper.FORMATS}


def file_keys(figure: dict[str, Any]) -> list[str]:
    """The names of a figure's files: its key, or one for each of several matrices."""
    names = [matrix["name"] for matrix in figure.get("matrices", ())]
    return [f"{figure['key']}-{name.replace(' ', '-')}" for name in names] if len(names) > 1 else [figure["key"]]


def text_in(svg: Path) -> str:
    return "".join(ET.parse(svg).getroot().itertext())


def test_the_figures_of_the_page_are_drawn_in_three_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(paper.STYLE, "savefig.dpi", 40)
    there, wanted = drawn_files(
        write_run(tmp_path / "run", classes=("$x", "a_b", EVIL, "owl")), tmp_path / "drawn"
    )
    assert there == wanted
    assert {name.rpartition(".")[2] for name in there} == {"pdf", "svg", "png"}
    for begins, kind in ((b"%PDF", "pdf"), (b"\x89PNG", "png"), (b"<?xml", "svg")):
        assert all(path.read_bytes().startswith(begins) for path in (tmp_path / "drawn").glob(f"*.{kind}"))
    assert all(name in text_in(tmp_path / "drawn" / "confusion.svg") for name in ("$x", "a_b", EVIL))


def test_every_method_has_a_confusion_matrix_that_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(paper, "FORMATS", {"svg": {"Date": None}})
    out = write_comparison(tmp_path / "c", ("fedavg", "fedwcm"), seeds=1)
    write_diverging_losses(out / "runs" / "m1-seed0")
    there, wanted = drawn_files(out, tmp_path / "drawn")
    assert there == wanted
    for name in ("fedavg", "fedwcm"):
        assert name in text_in(tmp_path / "drawn" / f"confusion-{name}.svg")
    loss = text_in(tmp_path / "drawn" / "test-loss.svg")
    assert "fedwcm (off scale: up to" in loss


def test_long_names_stay_within_a_figure_for_a_paper(tmp_path: Path) -> None:
    mpl = pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    classes = ("not readable at all, whatever the light", "a benign one", "General Hospital of Springfield", "x")
    out = write_comparison(tmp_path / "c", ("fedavg", LONG_NAME), seeds=2, classes=classes)
    write_diverging_losses(out / "runs" / "m1-seed0")
    content = report_content(load_runs([out]), 50)
    with mpl.rc_context(paper.STYLE):
        for figure in content.figures:
            drawn = paper._draw_figure(figure, content.styles)
            FigureCanvasAgg(drawn).draw()
            room = drawn.bbox.padded(2)
            # Numbers are left out: an axis has ticks beyond its ends, which are not drawn.
            for text in drawn.findobj(
                lambda artist: isinstance(artist, Text) and re.search("[a-z]", artist.get_text())
            ):
                ends = text.get_window_extent()
                inside = room.contains(ends.x0, ends.y0) and room.contains(ends.x1, ends.y1)
                assert inside, (figure.key, text.get_text())


def test_the_page_needs_no_matplotlib(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        f"import fedwcm; fedwcm.report({str(path)!r})\n"
        f"try: fedwcm.report({str(path)!r}, figures={str(tmp_path / 'f')!r})\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "fedwcm[report]" in done.stdout
    assert (path / "report.html").exists()


def test_a_report_that_fails_is_a_warning_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(write, "page", broken)
    with pytest.warns(UserWarning, match="disk full"):
        assert write.report_or_warn(tmp_path, [load_run(write_run(tmp_path / "run"))]) is None


def test_the_verb_writes_where_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / name, method)) for name, method in (("a", "fedavg"), ("b", "fedwcm"))]
    page = tmp_path / "page.html"
    assert main(["report", *runs, "--out", str(page), "--target", "0.4"]) == 0
    assert str(page) in capsys.readouterr().out
    assert report_in(page)["target"] == 0.4
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err
    assert main(["report", runs[0], "--target", "7"]) == 2


SMALL: Any = {"dataset": "digits", "clients": 6, "participation": 0.5, "epochs": 1, "batch_size": 20, "rounds": 2}


def test_a_run_writes_a_report_unless_told_not_to(tmp_path: Path) -> None:
    fedwcm.run("fedwcm", out=tmp_path / "a", **SMALL)
    fedwcm.run("fedwcm", out=tmp_path / "b", report=False, **SMALL)
    assert (tmp_path / "a" / "report.html").exists()
    assert not (tmp_path / "b" / "report.html").exists()
    shown = report_in(tmp_path / "a" / "report.html")
    assert {"split", "weights"} <= {figure["key"] for figure in shown["figures"]}  # type: ignore[attr-defined]


def test_a_diverged_run_has_a_report_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="NaN"):
        fedwcm.run("fedavg", out=tmp_path / "a", **{**SMALL, "lr": 1e18, "rounds": 9})
    assert "diverged" in (tmp_path / "a" / "report.html").read_text("utf-8")


def test_a_comparison_writes_one_report_for_the_whole(tmp_path: Path) -> None:
    made = fedwcm.compare(["fedavg", "fedcm[alpha=0.2]"], [0], tmp_path, **SMALL)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("report.html")] == [Path("report.html")]
    assert made.report == tmp_path / "report.html"
    assert report_in(made.report)["methods"] == ["fedavg", "fedcm[alpha=0.2]"]
    again = fedwcm.report(tmp_path, tmp_path / "again.html")
    assert again.read_bytes() == made.report.read_bytes()


def test_flags_in_a_sentence_are_code_and_nothing_else_is() -> None:
    message = (
        "Slow & <b>. To choose (--val-fraction 0.1), or --set method.momentum_norm=exact. Not a--b, nor 3 -- 4."
    )
    message += " --seeds 0-4."
    assert sentence(message) == (
        "Slow &amp; &lt;b&gt;. To choose (<code>--val-fraction 0.1</code>), or "
        "<code>--set method.momentum_norm=exact</code>. Not a--b, nor 3 -- 4. <code>--seeds 0-4</code>."
    )


def test_a_long_name_breaks_between_its_words() -> None:
    assert breakable("fedcm[alpha=0.1,x=<]") == "fedcm[<wbr>alpha=<wbr>0.1,<wbr>x=<wbr>&lt;]"
