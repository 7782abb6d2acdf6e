"""Files, functions and names stay as short as CONTRIBUTING.md says; functions, and their docstrings, are verbs."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.project import ROOT

FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
FILE_LINES = 400
BODY_LINES = 40
"""Without the signature and the docstring: public functions spell out their keywords, and document each."""

CRUMB_LINES = 25
"""Lines of code, without docstrings, comments and imports, below which a module with one importer is a crumb."""

REGISTRIES = ("methods", "losses", "samplers", "trackers", "partition", "models")
"""Rooms with a registry: one entry, one file."""

FILES = [
    path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if ".venvs" not in path.parts
]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_lines(function: Function) -> int:
    has_docstring = ast.get_docstring(function, clean=False) is not None
    statements = function.body[1:] if has_docstring else function.body
    if not statements:
        return 0
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1


def test_there_are_files_to_measure() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(FOLDERS)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f(\n    a,\n    b,\n):\n    '''Words.\n\n    More.\n    '''\n    return a\n", 1),
        ("async def f():\n    a = 1\n\n    # why\n    return a\n", 4),
        ("def f():\n    '''Words.'''\n", 0),
    ],
)
def test_a_body_is_measured_without_signature_and_docstring(text: str, lines: int) -> None:
    (function,) = ast.parse(text).body
    assert isinstance(function, Function)
    assert body_lines(function) == lines


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: length for path, length in lengths.items() if length > FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, Function) and (length := body_lines(node)) > BODY_LINES
    }
    assert found == {}


def code_lines(tree: ast.Module) -> int:
    """The lines of statements, but for docstrings and imports."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not is_text and not isinstance(node, ast.Import | ast.ImportFrom):
            last = node.lineno if hasattr(node, "body") else node.end_lineno or node.lineno
            lines |= set(range(node.lineno, last + 1))
    return len(lines)


def importers(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Who imports each module."""
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            else:
                continue
            for used in names & found.keys() - {name}:
                found[used].add(name)
    return found


def test_no_module_is_a_crumb() -> None:
    """An idea has a file, a function has not: a few lines that one neighbour needs belong there."""
    trees = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for path in FILES
        if path.is_relative_to(ROOT / "src/fedwcm") and "template" not in path.parts
    }
    crumbs = set()
    for name, using in importers(trees).items():
        room = name.rpartition(".")[0]
        small = code_lines(trees[name]) < CRUMB_LINES and not name.endswith("__init__")
        if small and len(using) == 1 and room.rpartition(".")[2] not in REGISTRIES:
            crumbs |= {name} if using.pop().startswith(f"{room}.") else set()
    assert crumbs == set()


LONGEST = 80
"""Characters of the name of a test, `test_` included."""

NO_VERB = {
    *("A", "An", "The", "All", "Each", "Every", "One", "Two", "Some", "No", "Whether", "How", "Which", "Who"),
    *("What", "Where", "When", "If", "Mean", "Numbers", "Number", "Accuracy", "Classes", "Curves", "Clients"),
}
"""Words with which the docstring of a function does not begin."""

ADJECTIVES = {"shifted", "ascended", "handled", "deferred", "locked"}
"""Oracles that are asked elsewhere, and context managers: they read as what they give."""


def functions(room: str) -> Iterator[tuple[str, Function]]:
    for path in FILES:
        if room in path.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, Function):
                    yield f"{path.name}:{node.lineno} {node.name}", node


def is_property(node: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_no_name_of_a_test_is_too_long() -> None:
    long = [
        place for place, node in functions("tests") if re.match("test_", node.name) and len(node.name) > LONGEST
    ]
    assert long == []


def test_functions_are_verbs() -> None:
    participles = [
        place
        for place, node in functions("src")
        if re.fullmatch("_*[a-z]+ed", node.name) and not is_property(node) and node.name not in ADJECTIVES
    ]
    assert participles == []


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    nouns = [
        f"{place}: {text[:40]}"
        for place, node in functions("src")
        if (text := ast.get_docstring(node) or "").split(" ")[0] in NO_VERB and not is_property(node)
    ]
    assert nouns == []
