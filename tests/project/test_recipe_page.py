"""The recipe's pages have the tables of the committed runs, and the recipe is what was judged."""

import json
import re
from collections.abc import Iterator

import pytest
from benchmarks.recipe import grid, tables
from benchmarks.recipe.run import FROZEN, PHASES, jobs

from fedwcm.config.recipes import RECIPES
from tests.project import ROOT


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, tables.Results]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield {phase: tables.results(phase) for phase in (*PHASES, "earlier")}


@pytest.mark.parametrize("name", tables.TABLES)
def test_a_table_is_that_of_the_runs(name: str, found: dict[str, tables.Results]) -> None:
    page = (ROOT / tables.page_of(name)).read_text(encoding="utf-8")
    match = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end of {name} -->", page, flags=re.S)
    assert match is not None
    assert match[1] == tables.TABLES[name](found)


@pytest.mark.parametrize("name", ["fedwcm+", "fedcm+", "fedavg+", "feddyn+"])
def test_the_recipe_is_the_arm_that_was_judged(name: str) -> None:
    judged = {**grid.JUDGE[name], "server.ema": grid.COMMON["server.ema"]}
    assert {"loss.tau": 1.0, **RECIPES[tables.present_name(name)].settings} == judged


def test_the_last_judgement_has_seeds_that_no_other_phase_has() -> None:
    seeds = {phase: {seed for _, _, seed in jobs(phase)} for phase in PHASES}
    assert seeds["final"] == set(range(100, 110))
    assert not seeds["final"] & (seeds["choose"] | seeds["judge"])
    frozen = json.loads((ROOT / FROZEN).read_text(encoding="utf-8"))
    assert frozen["runs"] == len(jobs("final"))


def test_the_pictures_of_the_demo_name_the_methods_that_it_compares() -> None:
    asked = re.search(r"--methods (\S+) .*--out runs/demo", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert asked is not None
    compared = set(asked[1].split(","))
    demo, report = (
        set(re.findall(r"\bfed[a-z+]+", (ROOT / f"docs/images/{name}.svg").read_text(encoding="utf-8")))
        for name in ("demo", "report")
    )
    assert demo == compared
    assert report < compared
