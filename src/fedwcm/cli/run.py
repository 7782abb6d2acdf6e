"""`fedwcm run`: train one method."""

import argparse
import re
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
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="a method or recipe, with options: fedcm[alpha=0.2]; or package.module:Name",
    )
    add_options(parser)
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: a new one in runs/)")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint in --out, with the options there"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let a resumed run import what its folder names as package.module:Name",
    )
    parser.add_argument("--no-report", action="store_true", help="write no report.html")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Run, and say where the results are."""
    flags, settings = chosen_flags(arguments), chosen_settings(arguments)
    config = config_from(arguments.method, arguments.config, settings, **flags)
    out = Path(arguments.out) if arguments.out else _new_folder(f"{config.title}-{Path(config.data.title).stem}")
    # Imported late: torch takes seconds, and a mistyped option should not wait for it.
    from fedwcm.api import run
    from fedwcm.engine.rounds import DivergedError
    from fedwcm.runs.folder import RunFolder
    from fedwcm.runs.progress import progress_for
    from fedwcm.runs.runner import StoppedError

    finished_before = arguments.resume and RunFolder(out).finished
    try:
        result = run(
            arguments.method,
            out=out,
            resume=arguments.resume,
            trust=arguments.trust,
            report=not arguments.no_report,
            config=arguments.config,
            settings=settings,
            progress=progress_for(arguments.quiet),
            **flags,
        )
    except DivergedError as error:
        print(f"diverged: {error}; the history up to there is in {out}", file=sys.stderr)
        return 1
    except StoppedError:
        print(f"stopped; what was done is saved. To go on, repeat with: --out {out} --resume", file=sys.stderr)
        return 130
    if finished_before:
        print(f"{out} is finished already: nothing to resume", file=sys.stderr)
    if not arguments.quiet:
        _say(result.summary, out)
    return 0


def _say(summary: dict[str, object], out: Path) -> None:
    from fedwcm.runs.runner import title_of

    parts = [f"{name} {summary[key]:.4f}" for name, key in _HEADLINES.items() if summary[key] is not None]
    print(f"{title_of(summary)} on {summary['dataset']}: " + ", ".join(parts))
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
    name = re.sub(r"[^\w.+-]+", "-", name).strip("-")
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
