"""Measure the shape of the package beside its bounds: python scripts/house.py, as `make check` does.

What a counter sees is no more than a warning sign; docs/architecture.md says how the package is meant to be built.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import names
from pydantic import BaseModel

import steadyrl
from steadyrl.core import plugins
from steadyrl.core.config import Config

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "steadyrl"
MAX_ENTRIES_AT_THE_TOP = 14
# 65 until evaluations had settings of their own (sets, samples, solved, temperature, top_p) and rollout.turns came:
# what people report of a model (avg@k, pass@k, several sets, at the temperature of use) is no plug-in's, and neither is
# what the sampler waits for.
MAX_CORE_SETTINGS = 71
MAX_PUBLIC_NAMES = 15
MAX_ALGORITHM_LISTS = 0
MAX_REPEATED = 0.003  # of all lines
MAX_VAGUE = 0.001  # of all bound names; see names.py
RUN_LENGTH = 6  # lines; shorter runs of equal lines are chance
# Where names of algorithms may be listed: where they are defined, and what other trainers call them.
KNOW_ALGORITHMS = ("algorithms/", "doctor/names/")


@dataclass(frozen=True)
class Figure:
    """One figure, its bound, and the places that make it up where there are few."""

    name: str
    value: float
    bound: float
    places: tuple[str, ...] = ()


def figures() -> tuple[Figure, ...]:
    """Return all figures of the package as it is in this checkout."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    entries = sum(path.suffix == ".py" or (path / "__init__.py").is_file() for path in PACKAGE.iterdir())
    cycle, lists = import_cycle(trees), algorithm_lists(trees)
    lines = {path: code_lines(text, trees[path]) for path, text in sources.items()}
    repeated = repeated_lines(lines)
    share = sum(len(numbers) for numbers in repeated.values()) / sum(
        len(text.splitlines()) for text in sources.values()
    )
    return (
        Figure("entries at the top", entries, MAX_ENTRIES_AT_THE_TOP),
        Figure("import cycles", bool(cycle), 0, cycle),
        Figure("core settings", len(core_settings(Config)), MAX_CORE_SETTINGS),
        Figure("public names", len(steadyrl.__all__), MAX_PUBLIC_NAMES),
        Figure("lists of algorithms elsewhere", len(lists), MAX_ALGORITHM_LISTS, lists),
        Figure("share of repeated lines", share, MAX_REPEATED, tuple(map(_place, repeated, repeated.values()))),
        Figure("names that say nothing", names.share(PACKAGE), MAX_VAGUE),
    )


def core_settings(section: type[BaseModel], prefix: str = "") -> tuple[str, ...]:
    """Return the dotted name of every setting in the sections that all runs have; sections may hold sections."""
    found: list[str] = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += core_settings(inner, f"{prefix}{name}.")
        elif prefix:  # the rewards, which are no section, hold weights by names of the user's choice
            found.append(prefix + name)
    return tuple(found)


def import_cycle(trees: dict[Path, ast.Module]) -> tuple[str, ...]:
    """Return the modules of one cycle of imports, none if there is no cycle."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): tree for path, tree in trees.items()}
    graph = {name: {i for i in _imports(tree) if i in modules} - {name} for name, tree in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return tuple(error.args[1])
    return ()


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield whatever may be a module: of ``from steadyrl import kl`` both steadyrl and steadyrl.maths.kl."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def algorithm_lists(trees: dict[Path, ast.Module]) -> tuple[str, ...]:
    """Return where two or more algorithms are listed, or one is compared with, outside the places that may."""
    names = set(plugins.BUILT_IN["algorithm"])
    found = []
    for path, tree in trees.items():
        place = path.relative_to(PACKAGE).as_posix()
        if place.startswith(KNOW_ALGORITHMS):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict | ast.Compare):
                items = node.keys if isinstance(node, ast.Dict) else ast.iter_child_nodes(node)
                listed = {item.value for item in items if isinstance(item, ast.Constant)} & names
                if len(listed) >= (1 if isinstance(node, ast.Compare) else 2):
                    found.append(f"{place}:{node.lineno}: {', '.join(sorted(listed))}")
    return tuple(found)


def code_lines(text: str, tree: ast.Module) -> list[tuple[int, str]]:
    """Return the lines of a file by number, without imports and empty lines."""
    imports = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if line and number not in imports]


def repeated_lines(files: dict[Path, list[tuple[int, str]]]) -> dict[Path, set[int]]:
    """Return by file the numbers of the lines that lie in a run of lines which stands somewhere else as well."""
    runs: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, lines in files.items():
        for at in range(len(lines) - RUN_LENGTH + 1):
            runs[tuple(line for _, line in lines[at : at + RUN_LENGTH])].append((path, at))
    found: dict[Path, set[int]] = defaultdict(set)
    for path, at in (place for places in runs.values() if len(places) > 1 for place in places):
        found[path] |= {number for number, _ in files[path][at : at + RUN_LENGTH]}
    return dict(sorted(found.items()))


def _place(path: Path, numbers: set[int]) -> str:
    return f"{path.relative_to(ROOT).as_posix()}: {', '.join(map(str, sorted(numbers)))}"


def main() -> None:
    """Print every figure beside its bound, with the places that make it up; exit with 1 where one is above."""
    measured = figures()
    for figure in measured:
        print(f"{figure.name:<32}{figure.value:>10.4g}  at most {figure.bound:g}")
        for place in figure.places:
            print(f"    {place}")
    if above := [figure.name for figure in measured if figure.value > figure.bound]:
        sys.exit(f"above their bounds: {', '.join(above)}")


if __name__ == "__main__":
    main()
