"""The command line: one file per command, most of them thin wrappers of a public function."""
# PYTHON_ARGCOMPLETE_OK

import argparse
import re
import sys
import traceback
import warnings
from collections.abc import Sequence

import argcomplete

from fedwcm import __version__
from fedwcm.cli import doctor, evaluate, flower, listing, partition, report, reproduce, run, sweeps
from fedwcm.cli.output import abandon_output, is_from_users_code, is_reader_gone, log_on_stderr, prepare_streams
from fedwcm.cli.parser import Parser, add_completers
from fedwcm.config.flags import FLAGS
from fedwcm.engine.backends.errors import WorkerError
from fedwcm.experiment import interrupts

COMMANDS = {
    "train": [
        run.add_parser,
        *(sweeps.add_compare_parser, sweeps.add_tune_parser, sweeps.add_study_parser),
        *(reproduce.add_parser, flower.add_parser),
    ],
    "follow and read": [report.add_watch_parser, report.add_parser],
    "use a trained model": [evaluate.add_parser, evaluate.add_predict_parser, evaluate.add_export_parser],
    "look around": [listing.add_parser, partition.add_parser],
    "the machine": [doctor.add_parser],
}
"""What adds the parser of each command, in the groups of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    The exit code is 0, 1 for a run that diverged or failed, 2 for a usage error, and 128 + n for a command that
    signal n has stopped: 130 for Ctrl-C, 141 if nobody reads the output any more.
    """
    prepare_streams()
    try:
        try:
            return _execute(arguments)
        finally:
            sys.stdout.flush()  # at the end of the process, the error could not be caught
    except BrokenPipeError:
        return abandon_output()


def command_line() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="fedwcm",
        usage="fedwcm COMMAND [--FLAG VALUE …]",
        description="Federated learning on long-tailed, non-IID data.",
        examples=[
            "fedwcm run --method fedwcm --dataset digits --clients 20 --rounds 50",
            "fedwcm compare --methods fedavg,fedwcm --seeds 0,1,2 --dataset digits --out runs/digits",
            'eval "$(register-python-argcomplete fedwcm)"   # completion in bash and zsh',
        ],
    )
    parser.add_argument("--version", action="version", version=f"fedwcm {__version__}")
    commands = parser.add_subparsers(prog="fedwcm", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    lines = []
    for title, members in COMMANDS.items():
        before = len(commands._choices_actions)
        for add_parser in members:
            add_parser(commands)
        new = commands._choices_actions[before:]
        lines += [f"\n{title}:", *(f"  {action.dest:<10} {action.help}" for action in new)]
    parser.description = "\n".join([str(parser.description), *lines, "\nfedwcm COMMAND --help says more."])
    commands._choices_actions = []  # they are in the description, in groups
    add_completers(parser)
    for command_parser in commands.choices.values():
        add_completers(command_parser)
    return parser


def _execute(arguments: Sequence[str] | None) -> int:
    parser = command_line()
    argcomplete.autocomplete(parser)
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help()
        return 0
    chosen, unknown = parser.parse_known_args(arguments)
    if unknown:
        chosen.parser.refuse(unknown)
    warnings.showwarning = _print_warning  # type: ignore[assignment]
    with interrupts.handled(until_exit=arguments is None), log_on_stderr(quiet=getattr(chosen, "quiet", False)):
        try:
            code: int = chosen.execute(chosen)
        except KeyboardInterrupt:
            print(getattr(chosen, "stopped", "stopped"), file=sys.stderr)
            return interrupts.exit_status()
        except BrokenPipeError as error:
            if is_reader_gone():
                raise
            print(f"error: {error}", file=sys.stderr)
            return 1
        except (ValueError, FileNotFoundError, NotADirectoryError, ImportError) as error:
            users = is_from_users_code(error)
            if users:
                traceback.print_exception(error)
            print(f"error: {_as_typed(str(error), chosen)}", file=sys.stderr)
            return 1 if users else 2
        except (OSError, WorkerError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        return code


def _as_typed(text: str, chosen: argparse.Namespace) -> str:
    """Return an error in the words of the command: `--participation 3` for `participation.fraction = 3.0`."""
    typed = {name: value for name in FLAGS if isinstance(value := getattr(chosen, name, None), str)}
    for name, value in typed.items():
        flag = f"--{name.replace('_', '-')} {value}".replace("\\", "\\\\")
        refused_or_same = rf"([^ ]+(?= is not allowed)|'?{re.escape(value)}'?(?![\w.]))"
        text = re.sub(rf"(?<![\w.-])({re.escape(FLAGS[name].key)}|{name}) = {refused_or_same}", flag, text)
    return text


def _print_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
