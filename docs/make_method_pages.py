"""Write a page for every method into docs/methods: its paper and update, options, cost and result.

    python docs/make_method_pages.py

Text and options come from the code's docstrings, costs are counted on a small run of the code, and results are
read from the tables docs/results/methods-*.csv, which `fedwcm compare` wrote.
"""

import csv
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedwcm.config.recipes import RECIPES
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.engine.client import MiniBatchOracle
from fedwcm.losses.balancefl import BalanceFL
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.testing import SIZES, _engine, _play

DOCS = Path(__file__).parent
SKIPPED = {"clip2fl": "needs a teacher's file: `python -m fedwcm.teacher` makes it"}
LOSSES = {"balancefl": BalanceFL}
"""Methods of their papers that are FedAvg with a loss (and a sampler): see `RECIPES`."""


def main() -> None:
    """Write the pages and their index."""
    results = _results()
    lines = [
        "# Methods",
        "",
        "Made by `python docs/make_method_pages.py`.",
        "",
        "| method | | down | up | client state | gradients a step |",
        "|---|---|---|---|---|---|",
    ]
    for name, cls in METHODS.items():
        cost = _cost(cls(**_cheap(cls)), CrossEntropy()) if name not in SKIPPED else None
        (DOCS / "methods" / f"{name}.md").write_text(
            _page(name, cls, cost, results.get(name, {})), encoding="utf-8"
        )
        shown = " | ".join(cost.values()) if cost else "– | – | – | –"
        lines.append(f"| [{name}]({name}.md) | {_first_line(cls)} | {shown} |")
    for name, loss in LOSSES.items():
        cost = _cost(FedAvg(), loss())
        (DOCS / "methods" / f"{name}.md").write_text(
            _page(name, loss, cost, results.get(name, {})), encoding="utf-8"
        )
        lines.append(f"| [{name}]({name}.md) | {_first_line(loss)} | {' | '.join(cost.values())} |")
    lines += ["", "P is the size of the model; numbers are counted on the code, per client and round.", ""]
    (DOCS / "methods" / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _page(name: str, cls: type[Method] | type[Loss], cost: dict[str, str] | None, result: dict[str, str]) -> str:
    text = inspect.getdoc(inspect.getmodule(cls)) or ""
    parts = [f"# {name}", "", text, "", "## Options", "", *_options(cls), "", "## Cost", ""]
    if cost:
        parts += [
            "| down | up | client state | gradients a step |",
            "|---|---|---|---|",
            f"| {' | '.join(cost.values())} |",
        ]
        parts += ["", "Per client and round, in models of size P; counted on the code."]
    else:
        parts += [f"Not counted here: {SKIPPED[name]}."]
    recipes = [f"`{r}`: {RECIPES[r].description}" for r in RECIPES if RECIPES[r].settings["method.name"] == name]
    if recipes:
        parts += ["", "## Recipes", "", *[f"- {line}" for line in recipes]]
    if result:
        parts += ["", "## Result", "", *[f"- {key}: {value}" for key, value in result.items()]]
        parts += ["", "One seed, defaults; the commands are in [Results](../results.md)."]
    return "\n".join([*parts, ""])


def _options(cls: type[Method] | type[Loss]) -> list[str]:
    rows = ["| option | default | |", "|---|---|---|"]
    for field in fields(cls):
        found = re.search(rf"^    {field.name}: (.+(?:\n {{8,}}\S.*)*)", _arguments(cls, field.name), re.MULTILINE)
        about = " ".join(found.group(1).split()).replace("|", "\\|") if found else ""
        default = "none" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{field.name}` | {default} | {about} |")
    return rows


def _arguments(cls: type[Method] | type[Loss], option: str) -> str:
    """The docstring, of the class or the nearest of its parents, that describes an option."""
    for base in cls.__mro__:
        text = inspect.getdoc(base) or ""
        if re.search(rf"^    {option}: ", text, re.MULTILINE):
            return text
    return ""


def _cost(method: Method, objective: Loss) -> dict[str, str]:
    """Models sent down and up, kept on the client, and gradients a step, counted on one round."""
    engine = _engine(method, objective)
    calls = _count_gradients(engine)
    state = _play(engine, 1)
    calls["gradients"] = calls["steps"] = 0
    _, record = engine.step(state)
    p = state.x.numel()
    asked = round(0.7 * len(SIZES))
    kept = sum(rows[0].numel() for rows in engine.store._rows.values())
    return {
        "down": _models(float(str(record["bytes_down"])) / 4 / asked, p),
        "up": _models(float(str(record["bytes_up"])) / 4 / asked, p),
        "client state": _models(kept, p),
        "gradients": f"{calls['gradients'] / calls['steps']:.3g}",
    }


def _cheap(cls: type[Method]) -> dict[str, int]:
    names = {field.name for field in fields(cls)}
    return {key: 2 for key in ("retrain_epochs", "match_steps") if key in names}


def _count_gradients(engine: object) -> dict[str, int]:
    training = engine.trainer  # type: ignore[attr-defined]
    calls = {"gradients": 0, "steps": 0}
    backward, start_step = training.forward.backward, MiniBatchOracle.__init__

    def counted_gradient(*arguments: object) -> object:
        calls["gradients"] += 1
        return backward(*arguments)

    def counted_step(self: MiniBatchOracle, *arguments: Any) -> None:
        calls["steps"] += 1
        start_step(self, *arguments)

    training.forward.backward = counted_gradient
    MiniBatchOracle.__init__ = counted_step  # type: ignore[method-assign]
    return calls


def _models(numbers: float, p: int) -> str:
    whole, rest = divmod(numbers, p)
    text = {0: "", 1: "P"}.get(int(whole), f"{int(whole)} P")
    return " + ".join(filter(None, [text, f"{rest:.0f}" if rest >= 0.5 else ""])) or "–"


def _results() -> dict[str, dict[str, str]]:
    """For each method, its result on each data set that a table in docs/results has."""
    results: dict[str, dict[str, str]] = {}
    for dataset in ("digits", "fashion-mnist"):
        path = DOCS / "results" / f"methods-{dataset}.csv"
        rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if path.exists() else []
        for row in rows:
            line = "diverged"
            if row["diverged"] == "0":
                accuracy, few = float(row["final_accuracy_mean"]), float(row["few_mean"])
                line = f"final accuracy {accuracy:.3f}, rare classes {few:.3f}"
            results.setdefault(row["method"], {})[dataset] = line
    return results


def _first_line(cls: type[Method] | type[Loss]) -> str:
    return (inspect.getdoc(inspect.getmodule(cls)) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
