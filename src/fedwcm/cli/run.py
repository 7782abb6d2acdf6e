"""`fedwcm run`: train one method."""

import argparse
import sys
from itertools import count
from pathlib import Path

from fedwcm.cli.common import SubParsers, add_options, chosen_flags, chosen_settings
from fedwcm.config.flags import config_from


def add(verbs: SubParsers) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "run", help="train one method", description="Train one method on one division of a data set."
    )
    parser.add_argument("--method", metavar="NAME", help="a method or recipe, with options: fedcm[alpha=0.2]")
    add_options(parser)
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: a new one in runs/)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    parser.add_argument("--no-report", action="store_true", help="write no report.html")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Run, and say where the results are."""
    flags, settings = chosen_flags(arguments), chosen_settings(arguments)
    config = config_from(arguments.method, arguments.config, settings, trust=arguments.trust, **flags)
    out = (
        Path(arguments.out)
        if arguments.out
        else _new_folder(f"{config.method.name}-{Path(config.data.dataset).stem}")
    )
    # Imported late: torch takes seconds, and a mistyped option should not wait for it.
    from fedwcm.api import run
    from fedwcm.engine.rounds import DivergedError
    from fedwcm.runs.folder import RunFolder
    from fedwcm.runs.interrupts import StoppedError, exit_status
    from fedwcm.runs.progress import progress_for

    finished_before = arguments.resume and RunFolder(out).finished
    try:
        result = run(
            config=config,
            out=out,
            resume=arguments.resume,
            report=not arguments.no_report,
            progress=progress_for(arguments.quiet),
        )
    except DivergedError as error:
        print(f"diverged: {error}; the history up to there is in {out}", file=sys.stderr)
        return 1
    except StoppedError:
        print(f"stopped; what was done is saved. To go on, repeat with: --out {out} --resume", file=sys.stderr)
        return exit_status()
    if finished_before:
        print(f"{out} is finished already: nothing to resume", file=sys.stderr)
    if not arguments.quiet:
        _say(result.summary, out)
    return 0


def _say(summary: dict[str, object], out: Path) -> None:
    parts = [f"{name} {summary[key]:.4f}" for name, key in _HEADLINES.items() if summary[key] is not None]
    print(f"{summary['method']} on {summary['dataset']}: " + ", ".join(parts))
    page = out / "report.html"
    print(f"results in {out}" + (f", to look at: {page}" if page.exists() else ""))


_HEADLINES = {
    "final accuracy": "final_accuracy",
    "best": "best_accuracy",
    "many": "many",
    "medium": "medium",
    "few": "few",
}


def _new_folder(name: str) -> Path:
    """`runs/NAME`, or with a number where that is taken."""
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
