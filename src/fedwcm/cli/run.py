"""`fedwcm run`: train one method."""

import argparse
import json
import logging
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwcm.cli import common
from fedwcm.config.flags import config_from
from fedwcm.config.settings import FineTuning
from fedwcm.utils.json_record import RecordError

if TYPE_CHECKING:
    from fedwcm import Result
    from fedwcm.experiment.folder import RunFolder


def add_parser(commands: common.SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="train one method",
        description="Train one method on one division of a data set.",
        examples=[
            "fedwcm run --method fedwcm --dataset digits --clients 20 --beta 0.1 --rounds 50",
            "fedwcm run --method 'fedcm[alpha=0.2]' --dataset mine.csv --label class --out runs/mine",
            "fedwcm run --out runs/mine --resume",
        ],
    )
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="a method or recipe, with options: fedcm[alpha=0.2]; package.module:Name; or auto",
    )
    common.add_options(parser)
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: a new one in runs/)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume the run in --out, with its options; a finished run goes on with more --rounds or --patience",
    )
    common.add_trust(parser, "the folder of a run, resumed or given as --config, names")
    common.add_personalize(parser)
    parser.add_argument("--no-report", action="store_true", help="write no report.html")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, for scripts; no progress")
    parser.shorten_help(["--method", "--out", "--resume", *common.COMMON])
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run, then print the headline numbers and where the results are."""
    flags, settings = common.parse_flags(arguments), common.parse_settings(arguments)
    config = config_from(arguments.method, arguments.config, settings, **flags)
    if arguments.personalize is not None:
        FineTuning.parse(arguments.personalize)
    if arguments.resume and not arguments.out:
        raise ValueError("--resume needs the folder of the run that is to go on: --out DIR")
    out = Path(arguments.out) if arguments.out else _new_folder(f"{config.title}-{Path(config.data.title).stem}")
    what = "resuming" if arguments.resume else f"{config.title} on {config.data.title}, into"
    logging.getLogger("fedwcm").info("%s %s", what, out)  # a sign of life: torch takes seconds to import
    # Imported late, so that a mistyped option fails at once.
    from fedwcm import run
    from fedwcm.engine.rounds import DivergedError
    from fedwcm.experiment.folder import RunFolder
    from fedwcm.experiment.interrupts import StoppedError, exit_status

    if arguments.personalize is not None and not arguments.resume:
        _require_clients_to_tune(arguments)
    before = _finished_rounds(RunFolder(out)) if arguments.resume else None
    quiet = arguments.quiet or arguments.json
    try:
        how: dict[str, Any] = {"out": out, "report": not arguments.no_report, "progress": not quiet}
        if arguments.resume or arguments.config:  # a run's folder says the rest, and may not be trusted
            how |= {"resume": arguments.resume, "trust": arguments.trust, "settings": settings, **flags}
            result = run(arguments.method, config=arguments.config, **how)
        else:
            result = run(config=config, **how)
    except DivergedError as error:
        print(f"diverged: {error}; the history up to there is in {out}", file=sys.stderr)
        return 1
    except StoppedError as stop:
        print(f"stopped; {stop}. To resume, repeat with: --out {out} --resume", file=sys.stderr)
        return exit_status()
    if before == result.summary.rounds:
        print(f"{out} is finished already: nothing to resume", file=sys.stderr)
    _print_result(arguments, result, RunFolder(out))
    return 0


def _finished_rounds(folder: "RunFolder") -> int | None:
    """Return the rounds of a run that has ended; None if it has not, or its summary is damaged and made again."""
    with suppress(RecordError):
        return folder.summary().rounds if folder.finished else None
    return None


def _require_clients_to_tune(arguments: argparse.Namespace) -> None:
    """Refuse data whose clients cannot fine-tune the model, before they have trained it."""
    from fedwcm.api.description import describe_run
    from fedwcm.api.personalization import clients_to_tune
    from fedwcm.data import synthetic
    from fedwcm.experiment.partitioning import partition_data

    flags, settings = common.parse_flags(arguments), common.parse_settings(arguments)
    config = describe_run(arguments.method, arguments.config, settings, flags, trust=arguments.trust)
    if config.data.dataset == synthetic.NAME:
        clients_to_tune((), None)
    data = partition_data(config)
    clients_to_tune(data.client_names, data.dataset.test_clients)


def _print_result(arguments: argparse.Namespace, result: "Result", folder: "RunFolder") -> None:
    """Print the summary, or everything as JSON; fine-tune before, if that was asked for."""
    fine_tuned = None
    if arguments.personalize is not None:
        from fedwcm.experiment.run import Run
        from fedwcm.reports.write import report_or_warn

        fine_tuned = common.personalize_by_text(folder.path, arguments.personalize, trust=True, write=True)
        if not arguments.no_report:
            report_or_warn(folder.path, [Run(folder)])  # again: it shows the fine-tuned clients
    if arguments.json:
        more = {} if fine_tuned is None else {"personalized": fine_tuned.to_json()}
        print(json.dumps({"folder": str(folder.path), **result.summary.to_json(), **more}))
    elif not arguments.quiet:
        _print_summary(result, folder.report_file)
        common.print_views(result.config.run.track, folder.path)
    if fine_tuned is not None and not arguments.json:
        common.print_personalized(fine_tuned)


def _print_summary(result: "Result", page: Path) -> None:
    from rich.text import Text

    from fedwcm.cli.common import console
    from fedwcm.experiment.records import VALIDATION_METRICS
    from fedwcm.reports.warnings import still_rising

    summary, screen = result.summary, console()
    screen.print(Text(f"\n{summary.title} on {summary.dataset}", style="bold green"))
    for name, (key, meaning) in _HEADLINES.items():
        if (value := summary.number(key)) is not None:
            screen.print(Text(f"{name:>18}  {value:.4f}  ").append(meaning, style="dim"))
    if (readings := _readings(result.config.method.options)) is not None:
        print(readings)
    if summary.selected_round is not None:
        metric = result.config.run.select_by
        value = summary.number(VALIDATION_METRICS[metric])
        print(
            f"kept is the model of round {summary.selected_round}, the best on the validation data "
            f"({metric.replace('_', ' ')} {value:.4f})"
        )
    if summary.stopped:
        print(f"stopped {summary.stopped}")
    if (rising := still_rising(result.history)) is not None:
        print(rising)
    if (cost := summary.encryption) is not None:
        sent = (cost["bytes_up"] + cost["bytes_down"]) / 1e6
        print(f"class counts added up under homomorphic encryption: {sent:.3g} MB, {cost['seconds']:.2g} s")
    print(f"\nresults in {page.parent}" + (f", report: {page}" if page.exists() else ""))
    screen.print(Text(f"next: fedwcm evaluate {page.parent}  # class by class", style="dim"), soft_wrap=True)


def _readings(options: Mapping[str, object]) -> str | None:
    """Return how FedWCM read its paper in this run, and where that is explained; None for other methods."""
    if "alpha_rule" not in options:
        return None
    of_alpha = ("alpha_rule", "q") if options["adaptive"] else ("adaptive",)
    names = ("momentum_norm", "server_step", "score", "temperature_scale", *of_alpha)
    chosen = ", ".join(f"{name}={str(options[name]).lower()}" for name in names if name in options)
    return f"readings of the paper: {chosen} (docs/reading-the-paper.md; the printed ones: fedwcm-literal)"


_HEADLINES = {
    "balanced accuracy": ("balanced_accuracy", "each class counts once"),
    "few": ("few", "the rare classes"),
    "medium": ("medium", "the classes between"),
    "many": ("many", "the frequent classes"),
    "final accuracy": ("final_accuracy", "of the last round, each test row counts once"),
    "best": ("best_accuracy", "of all rounds, chosen on the test data"),
    "selected accuracy": ("selected_accuracy", "of the round chosen on the validation data"),
    "validation": ("val_accuracy", "accuracy of that round on the validation data"),
    "training set": ("train_set_accuracy", "on all training data"),
}
"""Names, keys and meanings of the numbers that are printed."""


def _new_folder(name: str) -> Path:
    """Return `runs/NAME`, with a number if that exists."""
    name = re.sub(r"[^\w.+-]+", "-", name).strip("-")
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
