"""The parser of the command line: suggestions for mistyped words, examples below the options, shell completion."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fedwcm.cli.listing import list_names
from fedwcm.config.flags import OPTIONS
from fedwcm.config.schema import COMPONENTS
from fedwcm.core.checks import nearest


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_all_help(), end="")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser that suggests, and takes flags only in full: abbreviations would break when flags are added."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **keywords: Any) -> None:
        keywords.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        keywords.setdefault("allow_abbrev", False)
        if examples:
            keywords["epilog"] = "examples:\n" + "\n".join(f"  {example}" for example in examples)
        super().__init__(*arguments, **keywords)
        self.set_defaults(parser=self)
        self._common: set[str] = set()

    def shorten_help(self, common: Sequence[str]) -> None:
        """Show only these flags in `--help`, in brief; `--help-all` shows all."""
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="every flag")
        self._common = {*common, "-h", "--help-all"}

    def format_help(self) -> str:
        if not self._common:
            return super().format_help()
        usage, texts = self.usage, [action.help for action in self._actions]
        self.usage = f"{self.prog} [--FLAG VALUE …]"
        for action in self._actions:
            brief = re.sub(r" \([a-z]+\.[a-z_]+(?:; )?", " (", action.help or "").replace(" ()", "")
            action.help = brief if self._common & {*action.option_strings} else argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            self.usage = usage
            for action, text in zip(self._actions, texts, strict=True):
                action.help = text

    def format_all_help(self) -> str:
        """Return the help with every flag."""
        self._common = set()
        return self.format_help()

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong:
            near = nearest(wrong[1], re.findall(r"[\w-]+", wrong[2]))
            message += f". Did you mean {near!r}?" if near else ""
        self.exit(2, f"{self.prog}: error: {message}\nSee {self.prog} --help.\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End with an error about arguments that this parser does not know."""
        hints = []
        for word in unknown:
            flag = word.partition("=")[0]
            near = nearest(flag, self._option_string_actions) if flag.startswith("-") else None
            hints.append(f"{word} (did you mean {near}?)" if near else word)
        self.error(f"unrecognized arguments: {' '.join(hints)}")


Completer = Callable[..., list[str]]

KINDS = {
    "method": ("methods", "recipes"),
    "dataset": ("datasets",),
    "partition": ("partitions",),
    "model": ("models",),
    "loss": ("losses",),
    "sampler": ("samplers",),
    "track": ("trackers",),
}
"""Flags whose values are names of these lists."""


def add_completers(parser: Any) -> None:
    """Attach completers to the flags that take names or dotted options."""
    for action in parser._actions:
        for flag in action.option_strings:
            name = flag.lstrip("-")
            if name in KINDS:
                action.completer = _names(*KINDS[name])
            elif name == "methods":
                action.completer = _complete_list
            elif name in ("set", "grid", "search"):
                action.completer = _options


def _names(*kinds: str) -> Completer:
    def complete(prefix: str, **_: object) -> list[str]:
        return [name for kind in kinds for name in list_names(kind) if name.startswith(prefix)]

    return complete


def _complete_list(prefix: str, **_: object) -> list[str]:
    """Return the names after the last comma of a list."""
    before, comma, last = prefix.rpartition(",")
    known = [*list_names("methods"), *list_names("recipes")]
    return [f"{before}{comma}{name}" for name in known if name.startswith(last)]


def _options(prefix: str, **_: object) -> list[str]:
    """Return the dotted options; those of methods, models, … take longer, and only once their section is typed."""
    is_component = prefix.partition(".")[0] in COMPONENTS
    known = list_names("options") if is_component else OPTIONS
    return [f"{key}=" for key in known if key.startswith(prefix)]
