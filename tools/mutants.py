"""Mutants of a module: one small change each to its syntax tree, such as `<` to `<=`."""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SKIPPED = ("annotation", "returns", "bases", "decorator_list")


@dataclass(frozen=True)
class Mutant:
    """One change: in which function (`<module>` outside of all), of which node, from what to what.

    `number` tells equal changes of one function apart; `position` is the node's place in the walk over the tree;
    `definition` is the digest of the statement of the module that holds it.
    """

    function: str
    before: str
    after: str
    number: int
    position: int
    definition: str

    @property
    def text(self) -> str:
        """A name that survives edits elsewhere in the file."""
        again = f" (#{self.number})" if self.number else ""
        return f"{self.function}: {self.before} → {self.after}{again}"


def find_mutants(source: str) -> list[Mutant]:
    """Return all mutants of a module that read differently, in the order of its source."""
    seen: Counter[tuple[str, str, str]] = Counter()
    mutants = []
    tree = ast.parse(source)
    digests = {id(one): hashlib.sha256(ast.unparse(one).encode()).hexdigest()[:12] for one in tree.body}
    for position, (node, function, statement) in enumerate(_walk(tree)):
        changed = _change(copy.deepcopy(node))
        if changed is None or ast.unparse(node) == ast.unparse(changed):
            continue
        key = (function, ast.unparse(node), ast.unparse(changed))
        mutants.append(Mutant(*key, seen[key], position, digests[id(statement)]))
        seen[key] += 1
    return mutants


def compile_mutant(source: str, mutant: Mutant, filename: str) -> CodeType:
    """Return the code of the module with this change."""
    tree = ast.parse(source)
    for position, (node, *_) in enumerate(_walk(tree)):
        if position == mutant.position:
            changed = _change(node)
            assert changed is not None
            node.__class__ = changed.__class__  # in its place: a parent need not be known
            node.__dict__.update(changed.__dict__)
            break
    return compile(ast.fix_missing_locations(tree), filename, "exec")


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.stmt]]:
    """Yield the nodes whose value a program can feel, each with its function and its statement of the module.

    Annotations, decorators, error messages, assertions and `strict` of `zip` are left out.
    """
    stack: list[tuple[ast.AST, str, ast.stmt]] = [(one, "<module>", one) for one in reversed(tree.body)]
    while stack:
        node, function, statement = stack.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # of zip: a check of lengths that are equal
        yield node, function, statement
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = node.name if function == "<module>" else f"{function}.{node.name}"
        children = [
            child
            for name, value in ast.iter_fields(node)
            if name not in SKIPPED
            for child in (value if isinstance(value, list) else [value])
            if isinstance(child, ast.AST)
        ]
        stack.extend((child, function, statement) for child in reversed(children))


def _change(node: ast.AST) -> ast.AST | None:
    """Return the node with its one change; None if there is none for it."""
    match node:
        case ast.Compare(ops=[operator]):
            node.ops = [COMPARISONS[type(operator)]()]
        case ast.BinOp(op=operation) | ast.AugAssign(op=operation) if type(operation) in ARITHMETIC:
            node.op = ARITHMETIC[type(operation)]()
        case ast.BoolOp(op=ast.And()):
            node.op = ast.Or()
        case ast.BoolOp(op=ast.Or()):
            node.op = ast.And()
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=ast.Constant()):
            return None  # its constant is changed
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return node.operand
        case ast.Constant(value=bool() as truth):
            node.value = not truth
        case ast.Constant(value=int() | float() as number):
            node.value = number + 1
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            node.value = ast.copy_location(ast.Constant(None), value)
        case _:
            return None
    return node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
