"""The numbers that reports show, by topic: the tables of topics.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from steadyrl.lab.study.file import Take

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
COMPARED: Mapping[str, Sequence[tuple[str, Take]]] = _TABLES["compared"]
TAKES: Mapping[Take, str] = _TABLES["takes"]
DIAGNOSED: Mapping[str, Sequence[str]] = _TABLES["diagnosed"]
EXPLORED_FIRST: Sequence[str] = _TABLES["explored"]["first"]
NOT_EXPLORED = tuple(_TABLES["explored"]["left_out"])
