"""List names that say nothing about what they hold: python scripts/names.py [PATH ...].

A name such as ``found`` or ``one`` says when a value came about, or that there is one. A reader has to find out what it
is. Without a path, the share of such names is printed for each room of the package.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "steadyrl"
SAY_NOTHING = frozenset(
    """
    found known told held kept said one seen made given asked taken there other others both each whole rest
    own several what why drawn shown wanted every more most at of since places parts
    """.split()
)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of everything that code names: arguments, variables, attributes, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
            yield node.lineno, node.name or ""


def vague(path: Path) -> tuple[list[tuple[int, str]], int]:
    """Return (line, name) of the names of a file that say nothing, and how many names it binds."""
    names = list(bound_names(ast.parse(path.read_text(encoding="utf-8"))))
    return [(line, name) for line, name in names if name.strip("_") in SAY_NOTHING], len(names)


def share(folder: Path) -> float:
    """Return which share of the names of all files below a folder, or of one file, say nothing."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    counted = [vague(file) for file in files]
    return sum(len(names) for names, _ in counted) / max(1, sum(total for _, total in counted))


def main() -> None:
    """Print places of the paths that are named, or shares by room."""
    for path in map(Path, sys.argv[1:]):
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for line, name in vague(file)[0]:
                print(f"{file}:{line}: {name}")
    if len(sys.argv) > 1:
        return
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and list(path.rglob("*.py"))):
        print(f"{folder.name:<16}{share(folder):>8.1%}")
    print(f"{'whole':<16}{share(PACKAGE):>8.1%}")
    words = Counter(name.strip("_") for file in PACKAGE.rglob("*.py") for _, name in vague(file)[0])
    print(", ".join(f"{word} {count}" for word, count in words.most_common()))


if __name__ == "__main__":
    main()
