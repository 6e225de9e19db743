"""Settings that a trainer printed before its metrics: nested dicts over many lines, arguments, overrides.

A printed config may have lost lines, as in a pasted excerpt. So the place of a key is told by its column, as pprint
aligns it, and not by the balance of brackets; a key whose parent is lost is left out.
"""

from __future__ import annotations

import re
from typing import Any

from steadyrl.doctor.readers.rows import SUMMARY
from steadyrl.doctor.readers.spelling import typed

MAX_SETTINGS = 5000
MAX_TEXT = 1 << 16  # characters of a line
MAX_OTHERS = 100  # lines that other processes may have printed in between
MAX_VALUE = 200  # characters
MAX_TEXTS = 1000
DIGITS = b"0123456789"
KEY = re.compile(r"([\"'])([\w./-]{1,80})\1: ?")
# A number, a quoted text, a word such as None, and the ends of dicts; a bracket begins a list or a further dict.
VALUE = re.compile(r"(?P<value>-?[\w.+-]+|'[^']*'|\"[^\"]*\")(?P<closed>\}*)(?P<comma>, )?")
OPENING = re.compile(r"\s*(\[)?\{?\s*[\"'][\w./-]+[\"']: ")
ARGUMENTS = re.compile(r"(?:Arguments|Config|Args|Namespace)\(")
ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)=([^=,]{1,200}),\s*$")
PAIR = re.compile(r"(?<![\w.|])([A-Za-z_]\w*)=([^\s,()\[\]]{1,200})(?=[,)\s]|$)")
WORD = re.compile(r"(?<![\w.|])[A-Za-z_]\w*=[A-Za-z][\w./-]*\s")  # metrics between spaces have numbers only
# What a line must hold, how it spells a setting, and how many of them it takes to be no ordinary text.
FORMS = (
    (" steps = ", re.compile(r"(Total (?:optimization )?steps) = ([\d,]+)"), 1),
    ("=", re.compile(r"(?<![\w./=-])\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=([^\s'\",\]]{1,200})"), 1),
    ("--", re.compile(r"(?<!\S)--([A-Za-z][\w.-]*)[ =]([^\s-]\S{0,199}|-\d\S*)"), 3),
    ("_token_id'", re.compile(r"'(\w+_token_id)': (\d+|None)"), 1),
)


class PrintedConfig:
    """Takes the lines of a console in their order; the first value of a key counts."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}  # nested keys joined with dots
        self.complete = False  # whether the summary of a finished run was printed
        # The column of the keys of each dict that is open, and the key that it stands under.
        self._open_dicts: list[tuple[int, str]] = []
        self._in_arguments = False
        self._texts = set[bytes]()  # of lines that are no dict's, without their digits
        self._lines_outside = 0  # lines since the last one of a dict

    def add(self, line: str) -> None:
        """Take in a line without its colours and prefixes."""
        self.complete |= SUMMARY in line
        if len(line) > MAX_TEXT or len(self.settings) >= MAX_SETTINGS or self._read_dict_line(line):
            return
        if not self._in_arguments and "(" not in line:
            if (text := line.encode().translate(None, DIGITS)) in self._texts:  # it has the keys of an earlier one
                return
            if len(self._texts) < MAX_TEXTS:
                self._texts.add(text)
        if self._in_arguments and (argument := ARGUMENT.match(line)):
            self._add_setting(argument[1], argument[2])
            return
        begin = ARGUMENTS.search(line) if "(" in line else None
        self._in_arguments = begin is not None and line.rstrip().endswith("(")
        for needed, form, least in FORMS:
            if needed in line:
                self._add_settings(form.findall(line), least)
        if "=" in line and (begin or ", " in line or WORD.search(line)):
            least = 1 if begin else 2 if ", " in line else 3
            self._add_settings(PAIR.findall(line, begin.end() if begin else 0), least)

    def _add_settings(self, pairs: list[tuple[str, str]], least: int) -> None:
        for key, value in pairs if len(pairs) >= least else ():
            if key.startswith("Total "):
                key, value = "max_steps", value.replace(",", "")
            self._add_setting(key.replace("-", "_"), value)

    def _add_setting(self, key: str, value: str) -> None:
        text = value.strip()
        if len(text) <= MAX_VALUE:
            self.settings.setdefault(key, typed(text.strip("'\"")))

    def _read_dict_line(self, line: str) -> bool:
        """Take in a line of a dict that pprint broke over lines; return whether it is one."""
        if not OPENING.match(line):
            self._lines_outside += 1
            return False
        if self._lines_outside > MAX_OTHERS:
            self._open_dicts = []
        self._lines_outside = 0
        column = len(line) - len(line.lstrip())
        if line[column] == "{":
            balanced = line.count("{") == line.count("}")
            if balanced or column > 0:  # a row of metrics, or a dict inside a list
                return not balanced
            self._open_dicts, column = [(1, "")], 1
        while self._open_dicts and self._open_dicts[-1][0] > column:
            self._open_dicts.pop()
        if not self._open_dicts or self._open_dicts[-1][0] != column:
            return bool(self._open_dicts)
        self._read_keys(line, column)
        return True

    def _read_keys(self, line: str, position: int) -> None:
        while key_match := KEY.match(line, position):
            position = key_match.end()
            if line.startswith(("{'", '{"'), position):
                position += 1
                self._open_dicts.append((position, key_match[2]))
                continue
            if (value_match := VALUE.match(line, position)) is None:
                return
            path = [*(key for _, key in self._open_dicts if key), key_match[2]]
            self._add_setting(".".join(path), value_match["value"])
            del self._open_dicts[max(len(self._open_dicts) - len(value_match["closed"]), 0) :]
            if not value_match["comma"]:
                return
            position = value_match.end()
