"""Which names a program uses and does not define, and which it defines; read from its text, which is never run."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

_ALWAYS = frozenset(dir(builtins)) | {"__name__"}


def names_lacking(code: str) -> frozenset[str]:
    """Return the global names that valid Python uses and does not define; none where ``import *`` may define any."""
    if any(
        isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        for node in ast.walk(ast.parse(code))
    ):
        return frozenset()
    top = symtable.symtable(code, "<tests>", "exec")
    tables = list(_tables(top))
    used = {
        symbol.get_name()
        for table in tables
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or table is top)
    }
    return frozenset(used - _assigned(tables) - _ALWAYS)


def names_defined(code: str) -> dict[str, bool]:
    """Return the names that valid Python defines at its margin, and whether each is a class."""
    classes = {node.name for node in ast.parse(code).body if isinstance(node, ast.ClassDef)}
    return {name: name in classes for name in _assigned([symtable.symtable(code, "<given>", "exec")])}


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _assigned(tables: list[symtable.SymbolTable]) -> set[str]:
    """Return what the first table assigns or imports, and what the others do to a global name."""
    top = tables[0]
    return {
        symbol.get_name()
        for table in tables
        for symbol in table.get_symbols()
        if (symbol.is_assigned() or symbol.is_imported()) and (table is top or symbol.is_declared_global())
    }
