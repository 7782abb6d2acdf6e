"""Files and functions stay as short as CONTRIBUTING.md says."""

import ast

import pytest

from tests.project import ROOT

FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
FILE_LINES = 400
BODY_LINES = 40
"""Without the signature and the docstring: public functions spell out their keywords, and document each."""

FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]

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
