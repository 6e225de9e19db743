"""Settings in the source of a notebook: what it gives to the config of a trainer, as far as constants tell it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

CONFIG = re.compile(
    r"(?:GRPO|PPO|RLOO|GSPO|DAPO|Reinforce|DPO|KTO|ORPO|CPO)\w*(?:Config|Arguments|Args)$", re.IGNORECASE
)
TRAINER = re.compile(r"(?:^|\.)(\w*)Trainer$")
OF_PAIRS = re.compile(r"(?<!Online)(?:DPO|KTO|Reward)$")
PAIRS_KEY = "pairs_are_given"  # the setting that says that all trainers of a source are of losses of pairs alone
MAGIC = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)  # of a notebook, no Python
MAX_SOURCE = 1 << 18  # characters of a cell
NUMBERS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def settings_in(cells: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of the configs of reinforcement learning in some Python, read in the order of the cells.

    Nothing is run. An argument that two configs give different values is left out: which of them the log is of, the
    source does not say. Where all trainers of the source learn from given pairs, ``PAIRS_KEY`` says so.
    """
    names, settings, unlike = dict[str, Any](), dict[str, Any](), set[str]()
    trainers = set[str]()
    for cell in cells:
        try:
            tree = ast.parse(MAGIC.sub(r"\1pass", cell[:MAX_SOURCE]))
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # of another language, or in parts
            continue
        for node in ast.walk(tree):  # breadth first: the assignments of a cell before the calls inside them
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = _value(node.value, names)
            elif isinstance(node, ast.ClassDef):
                fields = [x for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)]
                names |= {f".{ast.unparse(x.target)}": _value(x.value, names) for x in fields if x.value}
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            trainers |= {kind[1] for kind in (TRAINER.search(called),) if kind}
            if CONFIG.search(called):
                arguments = {argument.arg: _value(argument.value, names) for argument in node.keywords if argument.arg}
                unlike |= {key for key, value in arguments.items() if settings.setdefault(key, value) != value}
    constants = {key: value for key, value in settings.items() if value is not None and key not in unlike}
    return constants | ({PAIRS_KEY: True} if trainers and all(map(OF_PAIRS.search, trainers)) else {})


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the number, text or truth value of an expression of constants, None of any other."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, bool | int | float | str) else None
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):  # of a record whose class says its default
        return names.get(f".{node.attr}")
    if isinstance(node, ast.BinOp) and type(node.op) in NUMBERS:
        left, right = _value(node.left, names), _value(node.right, names)
        if all(isinstance(side, int | float) for side in (left, right)) and (right or not isinstance(node.op, ast.Div)):
            return NUMBERS[type(node.op)](left, right)
    return None
