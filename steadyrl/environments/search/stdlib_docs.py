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
# Modules that are not written in Python; one with an underscore belongs to the public module without it.
_EXTENSIONS = (
    "_asyncio _bisect _bz2 _codecs _collections _contextvars _csv _ctypes _curses _datetime _decimal _functools "
    "_hashlib _heapq _io _json _locale _lzma _multiprocessing _operator _pickle _queue _random _signal _socket "
    "_sqlite3 _ssl _stat _statistics _struct _symtable _tracemalloc _weakref _zoneinfo builtins array atexit binascii "
    "cmath errno fcntl gc grp itertools marshal math mmap pwd resource select sys syslog termios time unicodedata "
    "zlib"
).split()
_PUBLIC_NAMES = {name: name.lstrip("_") for name in _EXTENSIONS} | {
    "_elementtree": "xml.etree.ElementTree", "_thread": "threading", "posix": "os", "pyexpat": "xml.parsers.expat",
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
        segments = path.relative_to(library).with_suffix("").parts
        if _is_left_out(segments[-1]) and segments[-1] != "__init__":
            continue
        module = ".".join(p for p in segments if p != "__init__")
        try:
            with warnings.catch_warnings(action="ignore"):  # invalid escapes in old docstrings
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, OSError):
            continue
        yield from _tree_entries(tree, module)


def _source_files(library: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(library):
        # In place, so that site-packages, which may hold any number of files, is not entered.
        subfolders[:] = [name for name in subfolders if not _is_left_out(name)]
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
        yield from _entry(name, module, "class", _clean_doc(value))
        for attribute, member in sorted(vars(value).items()):
            if not attribute.startswith("_") and callable(member):
                yield from _entry(f"{name}.{attribute}", module, "function", _clean_doc(member))
    elif callable(value):
        yield from _entry(name, module, "function", _clean_doc(value))


def _clean_doc(value: object) -> str | None:
    doc = value.__doc__
    return inspect.cleandoc(doc) if isinstance(doc, str) else None


def _entry(name: str, module: str, kind: str, doc: str | None) -> Iterator[Entry]:
    """Yield the entry of a docstring, or nothing if it says too little to be searched for."""
    if not doc:
        return
    doc = re.sub(r"^\s*[\w.]+\([^\n]*\)\s*(?:->[^\n]*?)?(?:--|:|\n)\s*", "", doc.strip(), count=1).strip()
    summary, _, body = doc.partition("\n\n")
    summary = " ".join(summary.split())
    sentence_end = re.search(r"(?<=[a-z)\]'\"`])\.\s+(?=[A-Z'\"`])", summary)
    if sentence_end:
        summary, body = summary[: sentence_end.start() + 1], summary[sentence_end.end() :] + "\n\n" + body
    if len(re.findall(r"[A-Za-z]{2,}", summary)) < 3 or len(summary) > 240:
        return
    yield Entry(name, module, kind, summary, body.strip())


def interpreter_tag() -> str:
    """Return everything that the entries depend on, for the name of a cache file."""
    return f"cpython-{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}-{sys.platform}"
