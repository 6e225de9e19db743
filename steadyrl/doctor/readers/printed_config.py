"""Settings that a trainer printed before its metrics: nested dicts over many lines, arguments, overrides.

A printed config may have lost lines, as in a pasted excerpt. So the place of a key is told by its column, as pprint
aligns it, and not by the balance of brackets; a key whose parent is lost is left out.
"""

from __future__ import annotations

import re
from typing import Any

from steadyrl.doctor.readers.rows import SUMMARY
from steadyrl.doctor.readers.spelling import setting

MAX_SETTINGS = 5000
MAX_TEXT = 1 << 16  # characters of a line
MAX_OTHERS = 100  # lines that other processes may have printed in between
MAX_VALUE = 200  # characters
KEY = re.compile(r"([\"'])([\w./-]{1,80})\1: ?")
# A number, a quoted text, a word such as None; what goes on with a bracket is a list or a further dict.
VALUE = re.compile(r"-?[\w.+-]+|'[^']*'|\"[^\"]*\"")
OPENING = re.compile(r"\s*(\[)?\{?\s*[\"'][\w./-]+[\"']: ")
OVERRIDE = re.compile(r"(?<![\w./=-])\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=([^\s'\",\]]{1,200})")
FLAG = re.compile(r"(?<!\S)--([A-Za-z][\w.-]*)[ =]([^\s-]\S{0,199}|-\d\S*)")
PAIR = re.compile(r"(?<![\w.|])([A-Za-z_]\w*)=([^\s,()\[\]]{1,200})(?=[,)\s]|$)")
ARGUMENTS = re.compile(r"\w*(?:Arguments|Config|Args|Namespace)\(")
ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)=([^=,]{1,200}),\s*$")
PLANNED = re.compile(r"Total optimization steps = ([\d,]+)")
TOKENS = re.compile(r"'(\w+_token_id)': (\d+|None)")


class PrintedConfig:
    """Takes the lines of a console in their order; the first value of a key counts.

    Attributes:
        settings: What was found, nested keys joined with dots.
        complete: Whether the summary of a finished run was printed.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.complete = False
        self._open: list[tuple[int, str]] = []  # the column of the keys of each dict that is open, and its own key
        self._arguments = False
        self._others = 0  # lines since the last one of a dict

    def add(self, line: str) -> None:
        """Take in a line without its colours and prefixes."""
        self.complete |= SUMMARY in line
        if len(line) > MAX_TEXT or len(self.settings) >= MAX_SETTINGS or self._nested(line):
            return
        if self._arguments and (found := ARGUMENT.match(line)):
            self._keep(found[1], found[2])
            return
        self._arguments = line.rstrip().endswith("(") and ARGUMENTS.search(line) is not None
        if "=" in line:
            self._assigned(line)
        if "--" in line:
            self._several(FLAG.findall(line), 3)
        if "_token_id'" in line:
            self._several(TOKENS.findall(line), 1)

    def _assigned(self, line: str) -> None:
        if planned := PLANNED.search(line):
            self._keep("max_steps", planned[1].replace(",", ""))
        self._several(OVERRIDE.findall(line), 1)
        if ARGUMENTS.search(line):
            self._several(PAIR.findall(line[ARGUMENTS.search(line).end() :]), 1)  # type: ignore[union-attr]
        elif ", " in line:
            self._several(PAIR.findall(line), 2)

    def _several(self, found: list[tuple[str, str]], least: int) -> None:
        for key, value in found if len(found) >= least else ():
            self._keep(key.replace("-", "_"), value)

    def _keep(self, key: str, value: str) -> None:
        text = value.strip()
        if len(text) <= MAX_VALUE:
            self.settings.setdefault(key, setting(text.strip("'\"")))

    def _nested(self, line: str) -> bool:
        """Take in a line of a dict that pprint broke over lines; return whether it is one."""
        if not OPENING.match(line):
            self._others += 1
            return False
        if self._others > MAX_OTHERS:
            self._open = []
        self._others = 0
        column = len(line) - len(line.lstrip())
        if line[column] == "{":
            balanced = line.count("{") == line.count("}")
            if balanced or column > 0:  # a row of metrics, or a dict inside a list
                return not balanced
            self._open, column = [(1, "")], 1
        while self._open and self._open[-1][0] > column:
            self._open.pop()
        if not self._open or self._open[-1][0] != column:
            return bool(self._open)
        self._keys(line, column)
        return True

    def _keys(self, line: str, at: int) -> None:
        """Keep the keys of a line from a column on, dicts inside it included."""
        while found := KEY.match(line, at):
            at = found.end()
            if line.startswith("{'", at) or line.startswith('{"', at):
                at += 1
                self._open.append((at, found[2]))
                continue
            value = VALUE.match(line, at)
            if value is None or line[at : at + 1] in "[{":
                return
            self._keep(".".join([*(key for _, key in self._open if key), found[2]]), value[0])
            at = value.end()
            closed = re.compile(r"\}*").match(line, at)
            for _ in range(len(closed[0]) if closed else 0):
                if self._open:
                    self._open.pop()
            at = closed.end() if closed else at
            if not line.startswith(", ", at):
                return
            at += 2
