"""The files that other tools read are valid, and say the same as each other."""

import re
import tomllib

import pytest
import yaml

import fedwcm
from tests.project import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]

SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    **{f".github/workflows/{name}.yml": "github-workflows" for name in ("test", "nightly", "release")},
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    **{f".github/ISSUE_TEMPLATE/{name}.yml": "github-issue-forms" for name in ("bug", "proposal", "result")},
}


@pytest.mark.parametrize("path", SCHEMAS)
def test_file_follows_its_schema(path: str) -> None:
    checker = pytest.importorskip("check_jsonschema", reason="it comes with fedwcm[dev]")
    with pytest.raises(SystemExit) as ended:
        checker.main(["--builtin-schema", f"vendor.{SCHEMAS[path]}", str(ROOT / path)])
    assert ended.value.code in (None, 0)


def test_every_github_file_is_checked() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.y*ml")}
    assert found == {path for path in SCHEMAS if path.startswith(".github/")}


def test_actions_are_pinned_by_commit() -> None:
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")]
    actions = [name for text in workflows for name in re.findall(r"uses: (\S+)", text)]
    assert actions
    assert [name for name in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name)] == []


def test_workflow_runs_make_test_on_both_systems_and_every_python() -> None:
    job = WORKFLOW["jobs"]["test"]
    systems = {name.split("-")[0] for name in job["strategy"]["matrix"]["os"]}
    assert systems == {"ubuntu", "macos"}
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test PYTHON=python"]


def test_metadata_makefile_and_workflow_name_the_same_pythons() -> None:
    classifiers = " ".join(PYPROJECT["project"]["classifiers"])
    pythons = re.findall(r"Python :: (3\.\d+)", classifiers)
    makefile = re.search(r"foreach version,([\d. ]+),", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == pythons
    assert makefile.group(1).split() == pythons
    assert PYPROJECT["project"]["requires-python"] == f">={pythons[0]}"


def test_hooks_run_the_pinned_tools() -> None:
    commands = [hook["entry"].split()[0] for hook in HOOKS]
    assert commands == [".venv/bin/ruff", ".venv/bin/ruff", ".venv/bin/mypy"]
    assert {hook["language"] for hook in HOOKS} == {"system"}


def test_every_direct_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    pinned = {_canonical(line.split("==")[0]) for line in lines}
    project = PYPROJECT["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    assert {_canonical(re.split(r"[\[<>=]", item)[0]) for item in wanted} <= pinned


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fedwcm.__version__
    assert citation["license"] == PYPROJECT["project"]["license"]
    paper = citation["preferred-citation"]
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Li", "Huang", "Jiang", "Xie", "Liu", "Du", "Wang", "Wu"]
    assert paper["url"] == PYPROJECT["project"]["urls"]["Paper"]
