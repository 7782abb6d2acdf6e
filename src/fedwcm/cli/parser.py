"""The parser of the command line: suggestions for a mistyped flag or command, and examples below the options."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from fedwcm.core.checks import nearest


class Parser(argparse.ArgumentParser):
    """A parser that suggests, and takes flags only in full: abbreviations would break when flags are added."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **keywords: Any) -> None:
        keywords.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        keywords.setdefault("allow_abbrev", False)
        if examples:
            keywords["epilog"] = "examples:\n" + "\n".join(f"  {example}" for example in examples)
        super().__init__(*arguments, **keywords)
        self.set_defaults(parser=self)

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
            hints.append(f"{word}: did you mean {near}?" if near else word)
        self.error(f"unrecognized arguments: {', '.join(hints)}")
