"""The documentation of the running interpreter's standard library, as entries with a summary and a body.

Pure-Python modules are read with ``ast`` and never imported (importing ``antigravity`` opens a browser, and
much else has side effects). Extension and built-in modules have no source: those are imported, from a list of
names that ship with CPython. Order and content depend only on the interpreter's version and platform.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Test suites, vendored installers and programs are not library documentation.
_LEFT_OUT = {
    "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "site-packages", "dist-packages",
    "__phello__", "pydoc_data", "__pycache__", "this", "antigravity", "_pyrepl", "encodings",
}  # fmt: skip
# Extension modules whose public module has another name.
_PUBLIC_NAMES = {
    "_asyncio": "asyncio", "_bisect": "bisect", "_bz2": "bz2", "_codecs": "codecs", "_collections": "collections",
    "_contextvars": "contextvars", "_csv": "csv", "_ctypes": "ctypes", "_curses": "curses", "_datetime": "datetime",
    "_decimal": "decimal", "_elementtree": "xml.etree.ElementTree", "_functools": "functools", "_hashlib": "hashlib",
    "_heapq": "heapq", "_io": "io", "_json": "json", "_locale": "locale", "_lzma": "lzma",
    "_multiprocessing": "multiprocessing", "_operator": "operator", "_pickle": "pickle", "_queue": "queue",
    "_random": "random", "_signal": "signal", "_socket": "socket", "_sqlite3": "sqlite3", "_ssl": "ssl",
    "_stat": "stat", "_statistics": "statistics", "_struct": "struct", "_symtable": "symtable", "_thread": "threading",
    "_tracemalloc": "tracemalloc", "_weakref": "weakref", "_zoneinfo": "zoneinfo", "posix": "os", "pyexpat":
    "xml.parsers.expat", "builtins": "builtins", "array": "array", "atexit": "atexit", "binascii": "binascii",
    "cmath": "cmath", "errno": "errno", "fcntl": "fcntl", "gc": "gc", "grp": "grp", "itertools": "itertools",
    "marshal": "marshal", "math": "math", "mmap": "mmap", "pwd": "pwd", "resource": "resource", "select": "select",
    "sys": "sys", "syslog": "syslog", "termios": "termios", "time": "time", "unicodedata": "unicodedata",
    "zlib": "zlib",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One documented module, class or function."""

    name: str
    """Qualified name, "os.path.join"."""
    module: str
    """The module it belongs to, "os.path"."""
    kind: str
    """"module", "class" or "function"."""
    summary: str
    """First sentence or line of the docstring, one line."""
    body: str
    """The rest of the docstring; may be empty."""


def read_entries() -> list[Entry]:
    """Return every documented public entry, sorted by name, one per name.

    Modules that cannot be read or imported are skipped: they are not part of this interpreter.
    """
    by_name: dict[str, Entry] = {}
    for entry in [*_source_entries(), *_extension_entries()]:
        by_name.setdefault(entry.name, entry)
    return [by_name[name] for name in sorted(by_name)]


def _source_entries() -> Iterator[Entry]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(_source_files(library)):
        parts = path.relative_to(library).with_suffix("").parts
        if _is_left_out(parts[-1]) and parts[-1] != "__init__":
            continue
        module = ".".join(p for p in parts if p != "__init__")
        try:
            with warnings.catch_warnings(action="ignore"):  # invalid escapes in old docstrings
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, OSError):
            continue
        yield from _tree_entries(tree, module)


def _source_files(library: Path) -> Iterator[Path]:
    """Yield the source files of the folders that count; site-packages, which may hold any number, is not entered."""
    for folder, below, names in os.walk(library):
        below[:] = [name for name in below if not _is_left_out(name)]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _is_left_out(name: str) -> bool:
    return name in _LEFT_OUT or name.startswith(("_", "config-"))


def _tree_entries(tree: ast.Module, module: str) -> Iterator[Entry]:
    module = {"posixpath": "os.path"}.get(module, module)
    yield from _entry(module, module, "module", ast.get_docstring(tree))
    stack: list[tuple[str, ast.AST]] = [(module, tree)]
    while stack:
        prefix, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if child.name.startswith("_"):
                continue
            name = f"{prefix}.{child.name}"
            is_class = isinstance(child, ast.ClassDef)
            yield from _entry(name, module, "class" if is_class else "function", ast.get_docstring(child))
            if is_class:
                stack.append((name, child))


def _extension_entries() -> Iterator[Entry]:
    for name, public in sorted(_PUBLIC_NAMES.items()):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for attribute, value in sorted(vars(module).items()):
            if attribute.startswith("_") or inspect.ismodule(value):
                continue
            # Programs replace hooks such as sys.excepthook. The original is beside them, with underscores.
            original = getattr(module, f"__{attribute}__", value)
            yield from _object_entries(f"{public}.{attribute}", public, original)


def _object_entries(name: str, module: str, value: object) -> Iterator[Entry]:
    if inspect.isclass(value):
        yield from _entry(name, module, "class", _own_doc(value))
        for attribute, member in sorted(vars(value).items()):
            if not attribute.startswith("_") and callable(member):
                yield from _entry(f"{name}.{attribute}", module, "function", _own_doc(member))
    elif callable(value):
        yield from _entry(name, module, "function", _own_doc(value))


def _own_doc(value: object) -> str | None:
    doc = value.__doc__
    return inspect.cleandoc(doc) if isinstance(doc, str) else None


def _entry(name: str, module: str, kind: str, doc: str | None) -> Iterator[Entry]:
    """Yield the entry of a docstring, or nothing if it says too little to be searched for."""
    if not doc:
        return
    doc = re.sub(r"^\s*[\w.]+\([^\n]*\)\s*(?:->[^\n]*?)?(?:--|:|\n)\s*", "", doc.strip(), count=1).strip()
    first, _, body = doc.partition("\n\n")
    first = " ".join(first.split())
    cut = re.search(r"(?<=[a-z)\]'\"`])\.\s+(?=[A-Z'\"`])", first)
    if cut:
        first, body = first[: cut.start() + 1], first[cut.end() :] + "\n\n" + body
    if len(re.findall(r"[A-Za-z]{2,}", first)) < 3 or len(first) > 240:
        return
    yield Entry(name, module, kind, first, body.strip())


def interpreter_tag() -> str:
    """Return everything that the entries depend on, for the name of a cache file."""
    return f"cpython-{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}-{sys.platform}"
