"""The leaderboard as Markdown, as CSV and as a page that sorts and filters."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import combinations
from pathlib import Path
from string import Template

import numpy as np

from fedwcm.experiment.files import replace_file
from fedwcm.reports.statistics import PairedTest
from fedwcm.reproduction.leaderboard.board import FOLDER, Plan
from fedwcm.reproduction.leaderboard.measure import Entry
from fedwcm.reproduction.leaderboard.scores import MEASURES, Score, against, correlation, ranks, score
from fedwcm.reproduction.pages import Pages
from fedwcm.utils.text import format_csv, format_markdown

NAME = "leaderboard"
SHOWN = ("balanced", "shifted balanced")
"""The measures of the page in Markdown; the others are in the CSV file and on the page in HTML."""

TaskScores = Mapping[str, Score]
Scores = Mapping[str, TaskScores]
"""By task and row."""


def write_board(plan: Plan, entries: Sequence[Entry], command: str, folder: Path) -> Pages:
    """Write `leaderboard.md`, `leaderboard.csv` and `leaderboard.html`."""
    every = [score(entry) for entry in entries]
    scores = {task: {each.row: each for each in every if each.task == task} for task in plan.tasks}
    table = _table(plan, scores, "balanced")
    page, numbers, sortable = (folder / f"{NAME}.{suffix}" for suffix in ("md", "csv", "html"))
    replace_file(page, _markdown(plan, scores, command, _not_run(plan, entries)))
    replace_file(numbers, _csv(plan, scores))
    replace_file(sortable, _html(plan, scores, command, _not_run(plan, entries)))
    return Pages(table, page, numbers, sortable)


def _not_run(plan: Plan, entries: Sequence[Entry]) -> list[str]:
    """Say task by task what was run."""
    lines = []
    for name, task in plan.board.tasks.items():
        own = [entry for entry in entries if entry.task == name]
        done = sum(entry.runs_left() == 0 for entry in own)
        what = f"{done} of {len(own)} rows" if done else "not run" if name in plan.tasks else "left out"
        lines.append(f"{name} ({task.about}): {what}")
    return lines


def _mean_rank(scores: Scores, measure: str) -> dict[str, float]:
    """Return the mean place of the rows that are complete on every task where several are."""
    rankings = [ranking for task in scores if len(ranking := ranks(scores[task].values(), measure)) > 1]
    shared = set.intersection(*map(set, rankings)) if rankings else set()
    means = {row: float(np.mean([ranking[row] for ranking in rankings])) for row in shared}
    return dict(sorted(means.items(), key=lambda pair: pair[1]))


def _table(plan: Plan, scores: Scores, measure: str) -> str:
    """Return a measure: a line per row by mean place, a column per task with the difference to the baseline."""
    tasks = [task for task in scores if ranks(scores[task].values(), measure)]
    places = _mean_rank(scores, measure)
    rest = [row for row in plan.rows if row not in places]
    lines = []
    for row in (*places, *rest):
        cells = [_cell(plan, scores[task], row, measure) for task in tasks]
        if any(cells):
            place = f"{places[row]:.1f}" if row in places else ""
            lines.append([f"`{row}`", place, *cells])
    return format_markdown(["row", "mean place", *tasks], lines)


def _cell(plan: Plan, scores: TaskScores, row: str, measure: str) -> str:
    own = scores.get(row)
    if own is None:
        return ""
    mean = own.mean(measure)
    if mean is None:
        return "failed" if own.problem else ""
    test = None if row == plan.board.baseline else _against_baseline(plan, scores, row, measure)
    means = [value for each in scores.values() if (value := each.mean(measure)) is not None]
    shown = f"**{mean:.3f}**" if mean == max(means) and len(means) > 1 else f"{mean:.3f}"
    if test is None:
        return shown
    mark = " ≠" if test.low > 0 or test.high < 0 else ""
    return f"{shown} ({100 * test.mean:+.1f} ± {100 * (test.high - test.mean):.1f}){mark}"


def _against_baseline(plan: Plan, scores: TaskScores, row: str, measure: str) -> PairedTest | None:
    baseline = scores.get(plan.board.baseline)
    return None if baseline is None else against(scores[row], baseline, measure)


def _correlations(scores: Scores, measure: str) -> list[list[str]]:
    rankings = {task: ranking for task in scores if (ranking := ranks(scores[task].values(), measure))}
    lines = []
    for first, second in combinations(rankings, 2):
        related = correlation(rankings[first], rankings[second])
        if related is not None:
            lines.append([first, second, f"{related[0]:+.2f}", str(related[1])])
    return lines


def _markdown(plan: Plan, scores: Scores, command: str, ran: Sequence[str]) -> str:
    board = plan.board
    lines = [f"# {board.title}", "", f"Written by `{command}`.", ""]
    lines += ["What was run:", "", *(f"- {line}" for line in ran), ""]
    lines += [_protocol(plan), ""]
    for measure in SHOWN:
        lines += [f"## {MEASURES[measure].capitalize()}", "", _table(plan, scores, measure), ""]
        if pairs := _correlations(scores, measure):
            lines += ["Rank correlations (Spearman) between tasks:", ""]
            lines += [format_markdown(["", "", "correlation", "rows"], pairs), ""]
    lines += ["## Without a row", "", *(f"- `{name}`: {why}" for name, why in board.excluded.items()), ""]
    problems = [
        f"- `{each.row}` on {each.task}: {each.problem}"
        for task in scores.values()
        for each in task.values()
        if each.problem
    ]
    lines += ["## Runs without a number", "", *problems, ""] if problems else []
    return "\n".join([*lines, "## Add a row", "", ADD, ""])


ADD = """A method of the package has a row by its file in `src/fedwcm/methods/`, a recipe by its entry. Anything
else that `--method` takes, with options or from an installed package, is one file
`src/fedwcm/reproduction/leaderboard/rows/NAME.toml`:

```toml
method = "my_package.my_method:MyMethod"     # or "fedavg[loss.name=ldam]"
# At most as many trials as every row has; left out, learning rates are tried.
[[trials]]
"local.lr" = 0.1
"method.rho" = 0.05
```

`fedwcm reproduce leaderboard --methods NAME --jobs 2` runs it; `results/leaderboard/NAME.jsonl` has its runs."""


def _protocol(plan: Plan) -> str:
    board = plan.board
    fraction = plan.scope.fraction
    changed = {**({"rounds": f"{100 * fraction:g} %"} if fraction < 1 else {}), **(plan.scope.settings or {})}
    unlike = f"**Not as in the board's file: {changed}.** " if changed else ""
    tuned, judged = (", ".join(map(str, seeds)) for seeds in (board.tuning_seeds, plan.seeds))
    return f"""{unlike}How a row is judged, and how to read a cell:

- **Trials.** Each row has {len(board.rates)} trials on each task: learning rates, or three of them with two values
  of an option of the method's own (`board.toml`). All else is the method's default. The mean balanced accuracy on
  validation data chooses, over the seeds {tuned}.
- **Judgement.** The chosen setting runs with the seeds {judged}. Validation data selects the round.
- **Cells.** The mean over these seeds on test data and, in brackets, the difference to `{board.baseline}` in
  points, with its 95 % interval over paired seeds. `{board.baseline}` had as many trials. ≠ marks an interval that
  leaves out 0, not corrected for the number of rows. Other rows are not tested against each other.
  The highest mean of a task is bold.
- **Shifted.** t · log p is added to the logits of the trained model. p is the class distribution of the training
  data, and t the strength that is best on validation data.
- **Server's data.** The server of `fedic` trains on a share of each class of the training data that is left beside
  validation, and its clients lack it. The clients of the other rows have all of it, and their servers none."""


def _csv(plan: Plan, scores: Scores) -> str:
    lines = [["task", "row", "measure", "mean", "seeds", "difference", "low", "high", "setting", "problem"]]
    for each in (each for task in scores.values() for each in task.values()):
        for measure in MEASURES if each.values["balanced"] or each.problem else ():
            test = _against_baseline(plan, scores[each.task], each.row, measure)
            difference = (test.mean, test.low, test.high) if test else (None,) * 3
            numbers = [each.mean(measure), len(each.values[measure]), *difference]
            shown = ["" if number is None else f"{number:.5g}" for number in numbers]
            lines.append([each.task, each.row, measure, *shown, json.dumps(each.setting), each.problem])
    return format_csv(lines)


def _html(plan: Plan, scores: Scores, command: str, ran: Sequence[str]) -> str:
    data = {
        "measures": MEASURES,
        "baseline": plan.board.baseline,
        "tasks": {task: _task(plan, scores[task]) for task in scores},
        "correlations": {measure: _correlations(scores, measure) for measure in MEASURES},
    }
    heading, *points = _protocol(plan).replace("**", "").replace("`", "").split("\n- ")
    return Template(FOLDER.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(plan.board.title),
        command=escape(command),
        ran="".join(f"<li>{escape(line)}</li>" for line in ran),
        heading=escape(heading.strip()),
        protocol="".join(f"<li>{escape(' '.join(point.split()))}</li>" for point in points),
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _task(plan: Plan, scores: TaskScores) -> dict[str, object]:
    rows = dict[str, object]()
    for each in scores.values():
        if not each.complete:
            continue
        numbers = {}
        for measure in MEASURES:
            test = _against_baseline(plan, scores, each.row, measure)
            interval = None if test is None else [round(x, 4) for x in (test.mean, test.low, test.high)]
            mean = each.mean(measure)
            numbers[measure] = None if mean is None else [round(mean, 4), interval]
        rows[each.row] = {"numbers": numbers, "curve": each.curve, "setting": each.setting}
    return rows
