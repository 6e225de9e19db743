"""Runs inside a jail: what a reader of Python would object to in a program, found in its syntax tree.

It is compiled, sent into the jail and called there with the candidate's text as data: parsing hostile text can cost any
amount of memory and time, and has crashed interpreters. Nothing but the standard library.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Iterator

_LONG_LINE, _LONG_FUNCTION, _DEEP = 120, 60, 5
_NAMES = frozenset(dir(builtins)) - {"_", "__doc__", "__name__"}
_BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try)
_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def inspect(code: str) -> tuple[list[str], int]:
    """Return one line per objection, by line number, and the number of nodes of the program's tree.

    The number measures length without regard to names, comments and layout. What is no Python has one objection, the
    syntax error, and no nodes.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"syntax: {error}"], 0
    long_lines = [number for number, line in enumerate(code.splitlines(), start=1) if len(line) > _LONG_LINE]
    objections = [(number, f"longer than {_LONG_LINE} characters") for number in long_lines]
    objections += _unused_imports(tree)
    for node in ast.walk(tree):
        objections += _node_objections(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            objections += _function_objections(node)
    return [f"line {line}: {text}" for line, text in sorted(objections)], sum(1 for _ in ast.walk(tree))


def _node_objections(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.ExceptHandler(type=None):
            yield node.lineno, "a bare except"
        case ast.ExceptHandler(body=[ast.Pass()]):
            yield node.lineno, "an exception is swallowed"
        case ast.Compare(ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant(value=None | True | False)]):
            yield node.lineno, "compared with None, True or False by =="
        case ast.ImportFrom(names=[ast.alias(name="*")]):
            yield node.lineno, "import *"
        case ast.Global() | ast.Nonlocal():
            yield node.lineno, "global or nonlocal"
        case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__" as name)):
            yield node.lineno, f"calls {name}"
        case ast.If(test=ast.Constant()) | ast.IfExp(test=ast.Constant()):
            yield node.lineno, "a condition that is constant"
        case ast.Assign(value=ast.Lambda()):
            yield node.lineno, "a lambda with a name"
    body = getattr(node, "body", None)
    if isinstance(body, list):
        for statement, following in itertools.pairwise(body):
            if isinstance(statement, _ENDS):
                yield following.lineno, "never reached"
                break


def _function_objections(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    stored = {n.id: n.lineno for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for default in [*arguments.defaults, *arguments.kw_defaults]:
        if isinstance(default, ast.List | ast.Dict | ast.Set):
            yield default.lineno, "a mutable default"
    for parameter in parameters:
        if parameter.arg not in used and not parameter.arg.startswith("_"):
            yield parameter.lineno, f"the argument {parameter.arg} is not used"
        if parameter.arg in _NAMES:
            yield parameter.lineno, f"the argument {parameter.arg} hides a built-in"
    for name, line in stored.items():
        if name not in used and not name.startswith("_"):
            yield line, f"{name} is not used"
        elif name in _NAMES:
            yield line, f"{name} hides a built-in"
    if (function.end_lineno or function.lineno) - function.lineno >= _LONG_FUNCTION:
        yield function.lineno, f"longer than {_LONG_FUNCTION} lines"
    if _depth(function) >= _DEEP:
        yield function.lineno, f"blocks {_DEEP} deep"


def _depth(node: ast.AST) -> int:
    return max((_depth(child) + isinstance(child, _BLOCKS) for child in ast.iter_child_nodes(node)), default=0)


def _unused_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = (alias.asname or alias.name).partition(".")[0]
                if name not in used and name != "*" and getattr(node, "module", "") != "__future__":
                    yield node.lineno, f"the import {name} is not used"
