"""Which default tests call which functions of the package: what a mutant of a function is run against."""

import hashlib
import json
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

SHARED = re.compile(r"cache\b|scope=|longtail_rounds")
"""In a file that keeps what one test computed for the next, every test covers what any of them calls."""

ALWAYS = "test_defaults"
"""The file of the tests that read constants and call nothing: they judge every mutant."""


def processor_seconds() -> float:
    """Return the processor time of this process and of the children that have ended."""
    return sum(os.times()[:4])


@dataclass
class Recorder:
    """A plugin of pytest: the functions of a package that each test calls, and how long it takes.

    What child processes call is not seen.
    """

    package: Path
    seconds: dict[str, float] = field(default_factory=dict)
    codes: dict[str, set[CodeType]] = field(default_factory=lambda: defaultdict(set))
    test: str = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note whatever is called while a test runs."""
        self.test, start = item.nodeid, processor_seconds()
        threading.settrace(self._note)
        sys.settrace(self._note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.seconds[item.nodeid] = processor_seconds() - start

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        self.codes[self.test].add(frame.f_code)

    def write(self, path: Path, shared: bool) -> None:
        """Write each test's seconds and functions, as `metrics/angles.py mean_angle`."""
        functions = {test: sorted(filter(None, map(self._name, self.codes[test]))) for test in self.seconds}
        if shared:
            union = sorted({name for names in functions.values() for name in names})
            functions = dict.fromkeys(functions, union)
        record = {
            test: {"seconds": round(self.seconds[test], 3), "functions": functions[test]} for test in functions
        }
        path.write_text(json.dumps(record), encoding="utf-8")

    def _name(self, code: CodeType) -> str | None:
        file = Path(code.co_filename)
        if not file.is_relative_to(self.package):
            return None
        return f"{file.relative_to(self.package)} {code.co_qualname.replace('.<locals>', '')}"


@dataclass(frozen=True)
class Selection:
    """A plugin of pytest: these tests and no others, in this order."""

    tests: Sequence[str]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of the list that still exist."""
        places = {test: place for place, test in enumerate(self.tests)}
        items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])


def record_path(folder: Path, test_file: Path) -> Path:
    """Return where the record of a test file is kept; another one after each edit."""
    digest = hashlib.sha256(test_file.read_bytes()).hexdigest()[:12]
    return folder / f"{test_file.stem}-{digest}.json"


def choose_tests(records: Sequence[Path], file: str, function: str, seconds: float) -> tuple[list[str], float]:
    """Return the tests that call a function, the quickest first, and how long they take: `seconds` at most.

    If none calls it (only child processes do, or it is outside of all functions), those that call any of its file;
    a module itself runs in the test that happens to import it first.
    """
    tests = {test: one for path in records for test, one in _read(path).items()}
    covering: list[str] = []
    for prefix in (f"{file} {function}", f"{file} ")[function == "<module>" :]:
        covering = covering or [
            test for test, one in tests.items() if any(_is_in(name, prefix) for name in one["functions"])
        ]
    covering += [test for test in tests if Path(test.partition("::")[0]).stem == ALWAYS and test not in covering]
    covering.sort(key=lambda test: float(tests[test]["seconds"]))
    chosen: list[str] = []
    total = 0.0
    for test in covering:
        total += tests[test]["seconds"]
        if total > seconds and chosen:
            break
        chosen.append(test)
    return chosen, min(total, seconds)


@cache
def _read(path: Path) -> dict[str, dict[str, Any]]:
    record: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _is_in(name: str, prefix: str) -> bool:
    """Whether a function is the one of a mutant, is inside it, or in its file."""
    return name == prefix or (name.startswith(prefix) and (prefix.endswith(" ") or name[len(prefix)] in ".<"))
