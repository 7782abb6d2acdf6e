"""The command line: one file a verb, each a thin wrapper of a public function."""

import argparse
import sys
import warnings
from collections.abc import Sequence

from fedwcm import __version__
from fedwcm.cli import bench, compare, doctor, evaluate, flower, partition, report, run, show, watch
from fedwcm.engine.backends.errors import WorkerError
from fedwcm.runs import interrupts

VERBS = (run, compare, watch, report, partition, evaluate, flower, bench, doctor, show)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    The exit code is 0, or 1 for a run that diverged or failed, 2 for a wrong request, and 128 + n for a command
    that signal n has stopped: 130 for Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="fedwcm", description="Federated learning on long-tailed, non-IID data.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"fedwcm {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for verb in VERBS:
        verb.add(verbs)
    chosen = parser.parse_args(arguments)
    warnings.showwarning = _say_warning  # type: ignore[assignment]
    with interrupts.handled():
        return _outcome(chosen)


def _outcome(chosen: argparse.Namespace) -> int:
    try:
        code: int = chosen.do(chosen)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return interrupts.exit_status()
    except (ValueError, FileNotFoundError, NotADirectoryError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (OSError, WorkerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return code


def _say_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
