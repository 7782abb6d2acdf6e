"""`fedwcm.run`: train one method on one division of a data set."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Unpack

from fedwcm.api.arguments import ConfigLike, MethodLike
from fedwcm.api.choice import choose_recipe
from fedwcm.api.description import describe_run
from fedwcm.api.keywords import RunKeywords
from fedwcm.api.result import Result
from fedwcm.config.recipes import AUTO
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.progress import Progress, chosen_progress
from fedwcm.experiment.run import Run
from fedwcm.experiment.start import start


def run(
    method: MethodLike | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    trust: bool = False,
    report: bool = True,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[RunKeywords],
) -> Result:
    """Train one method on one division of a data set.

    Names and objects may be mixed freely. Options that are not given have the defaults of
    `fedwcm.config.schema`.

    Args:
        method: a method or recipe, with options in brackets if need be: `"fedcm[alpha=0.2]"`;
            `"package.module:Name"`; or a `Method` or its class. `"auto"` trains FedAvg and four recipes, and
            takes the one that is best on validation data, by `run.select_by`; `"auto[share=0.25]"` compares them
            after a quarter of the rounds, `"auto[draws=4]"` on four draws of validation data.
        out: folder for the configuration, metrics, checkpoints and model; nothing is written without one.
        resume: go on from the newest checkpoint in `out`, with the options of the run there. Objects that the
            configuration only describes must be passed again.
        trust: import what the folder of a run, resumed or given as `config`, names as `package.module:Name`.
        report: write `report.html` into `out` at the end.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: whether to show how far the run is, by default in a notebook only; or an object that is
            called after every round.
        options: common options, by the names of their flags: docs/options.md has them all. `dataset` also takes
            data: `(x, y)`, `(x_train, y_train, x_test, y_test)` or a dict of arrays or tensors, a dict of `(x, y)`
            by `train`, `val` and `test`, a list or dict of each client's `(x, y)`, a pandas DataFrame, a
            `torch.utils.data.Dataset`, a Hugging Face `Dataset`, a `fedwcm.Dataset`; `clients` the client of every
            training sample; `model` an `nn.Module`, which is copied, or what makes one; `loss`, `sampler` and
            `partition` an object or its class.
    """
    folder = None if out is None else RunFolder(Path(out))
    describe = partial(
        describe_run, config=config, settings=settings, flags=options, trust=trust, resume=resume, folder=folder
    )
    described, why = describe(method), None
    if described.method.name == AUTO:
        has_chosen = resume and folder is not None and folder.holds_run
        chosen, why = (None, None) if has_chosen else choose_recipe(described.method, describe)
        described = describe(chosen)
    write = _write_report if report else None
    run = start(described, folder, resume=resume, report=write, progress=chosen_progress(progress))
    return Result(run, described.model.value, described.model.trusted, why)


def _write_report(run: Run) -> None:
    from fedwcm.reports.write import report_or_warn  # here: a run in memory needs no report

    report_or_warn(run.path, [run])
