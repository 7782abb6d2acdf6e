"""The command line: one file a verb, each a thin wrapper of a public function."""

import argparse
import sys
import warnings
from collections.abc import Sequence

from fedwcm import __version__
from fedwcm.cli import bench, compare, evaluate, flower, partition, predict, report, run, show, watch

VERBS = (run, compare, watch, report, partition, evaluate, predict, flower, bench, show)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, or 1 for a run that diverged, 2 for a wrong request, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="fedwcm", description="Federated learning on long-tailed, non-IID data.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"fedwcm {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for verb in VERBS:
        verb.add(verbs)
    chosen = parser.parse_args(arguments)
    warnings.showwarning = _say_warning  # type: ignore[assignment]
    try:
        code: int = chosen.do(chosen)
    except (ValueError, FileNotFoundError, NotADirectoryError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return code


def _say_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
