"""Functions are verbs, their docstrings begin with one, and the names of tests can be read at a glance."""

import ast
import re
from collections.abc import Iterator

from .test_sizes import FILES, Function

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
