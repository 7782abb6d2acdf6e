"""`fedwcm.open_run`: a past run or comparison, from its folder."""

from pathlib import Path

from fedwcm.api.arguments import ModelLike
from fedwcm.api.comparison_result import Comparison
from fedwcm.api.result import Result
from fedwcm.experiment.comparison_folder import ComparisonFolder
from fedwcm.experiment.discovery import runs_below
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.run import Run


def open_run(folder: str | Path, *, model: ModelLike | None = None, trust: bool = False) -> Result | Comparison:
    """A past run or comparison: what `fedwcm.run`, or `fedwcm.compare`, returned.

    A run that is going on, or was stopped, has its history so far. Its model is loaded when it is asked for.

    Args:
        folder: folder of a run or a comparison.
        model: what takes the trained weights, if the run was given an object: see `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
    """
    path = Path(folder)
    if RunFolder(path).holds_run and RunFolder(path).metrics_file.exists():
        return Result(Run(RunFolder(path)), model, trust)
    comparison = ComparisonFolder(path)
    if comparison.index_file.exists():
        index, page = comparison.index(), comparison.report_file
        runs = [Run(RunFolder(comparison.runs / name), index=index) for name in index.labels]
        begun = [run for run in runs if run.folder.holds_run]
        return Comparison(path, begun, page if page.exists() else None, model, trust)
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder")
    RunFolder(path).refuse_search()
    raise FileNotFoundError(
        f"{path} holds neither a run (config.toml and metrics.jsonl) nor a comparison (comparison.json)"
        f"{runs_below(path)}"
    )
