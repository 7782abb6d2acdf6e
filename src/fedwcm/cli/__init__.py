"""The command line: one file per command, each a thin wrapper of a public function."""

import argparse
import sys
import warnings
from collections.abc import Sequence

from fedwcm import __version__
from fedwcm.cli import (
    bench,
    compare,
    doctor,
    evaluate,
    flower,
    listing,
    partition,
    predict,
    report,
    reproduce,
    run,
    watch,
)
from fedwcm.cli.log import log_on_stderr
from fedwcm.cli.output import is_reader_gone, until_reader_is_gone
from fedwcm.engine.backends.errors import WorkerError
from fedwcm.runs import interrupts

COMMANDS = (run, compare, reproduce, watch, report, partition, evaluate, predict, flower, bench, doctor, listing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    The exit code is 0, 1 for a run that diverged or failed, 2 for a usage error, and 128 + n for a command that
    signal n has stopped: 130 for Ctrl-C, 141 if nobody reads the output any more.
    """
    return until_reader_is_gone(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="fedwcm", description="Federated learning on long-tailed, non-IID data.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"fedwcm {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    chosen = parser.parse_args(arguments)
    warnings.showwarning = _print_warning  # type: ignore[assignment]
    with interrupts.handled(), log_on_stderr(quiet=getattr(chosen, "quiet", False)):
        return _outcome(chosen)


def _outcome(chosen: argparse.Namespace) -> int:
    try:
        code: int = chosen.do(chosen)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return interrupts.exit_status()
    except BrokenPipeError as error:
        if is_reader_gone():
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (ValueError, FileNotFoundError, NotADirectoryError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (OSError, WorkerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return code


def _print_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
