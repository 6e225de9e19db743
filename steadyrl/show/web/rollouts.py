"""Recorded rollouts: a small index of each file, so that one of 50 MB opens at once and only what is shown is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from steadyrl.core.rundir import MOST_CHARACTERS, RunDir, parse_json
from steadyrl.show.review.epochs import finite_number
from steadyrl.show.web.conversation import call_ends
from steadyrl.show.web.folder import Folder

KEPT_FILES = 24  # indices that are kept
MOST_ROLLOUTS, MOST_BYTES = 200_000, 1 << 30  # of a file
MOST_STEPS = 60  # that one problem is shown over
NO_CALLS, FAILED, WELL = "(none)", "any error", "no error"  # choices of a filter beside names and ends
ORDERS = ("file", "worst", "best", "longest", "shortest")


@dataclass(frozen=True)
class Entry:
    """A rollout of a file, without its texts."""

    number: int
    offset: int
    problem: str
    reward: float | None
    stop: str
    tokens: int
    unscored: bool
    calls: frozenset[tuple[str, str]]  # of tools: their names, and what became of them


class Rollouts:
    """The recorded rollouts of the runs of a folder."""

    def __init__(self, folder: Folder):
        self._folder = folder
        self._cache: OrderedDict[tuple[Path, int, int], list[Entry]] = OrderedDict()
        self._alone = Lock()

    def file(self, run: RunDir, step: int) -> Path | None:
        """Return the file of a step's rollouts, or None if there is none in the folder, or one that is no such file."""
        path = self._folder.file(run.rollouts_file(step))
        return path if path and path.stat().st_size <= MOST_BYTES else None

    def entries(self, path: Path) -> list[Entry]:
        """Return all rollouts of a file, in its order."""
        stat = path.stat()
        key = (path, stat.st_size, stat.st_mtime_ns)
        with self._alone:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        entries = [_entry(number, offset, record) for number, (offset, record) in enumerate(_records(path))]
        with self._alone:
            self._cache[key] = entries
            while len(self._cache) > KEPT_FILES:
                self._cache.popitem(last=False)
        return entries

    def records(self, path: Path, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Return the whole records of some entries of a file."""
        records = []
        with path.open("rb") as file:
            for entry in entries:
                file.seek(entry.offset)
                record = _parsed(file.readline(MOST_CHARACTERS))
                records.append(record if record is not None else {})
        return records

    def choose(self, path: Path, query: Mapping[str, str]) -> list[Entry]:
        """Return the entries of a file that fit, in the order wanted.

        Args:
            path: A file of rollouts.
            query: "problem", "stop", "least" and "most" (of the reward), "tool" (a name, or ``NO_CALLS``), "error" (an
                end of a call of that tool, ``FAILED`` or ``WELL``), "q" (words in its texts) and "order", one of
                ``ORDERS``.
        """
        entries = self.entries(path)
        least, most = _bound(query.get("least")), _bound(query.get("most"))
        problem, stop = query.get("problem", ""), query.get("stop", "")
        fitting = [
            entry
            for entry in entries
            if problem in ("", entry.problem)
            and (stop in ("", entry.stop) or (stop == "unscored" and entry.unscored))
            and (least is None or (entry.reward is not None and entry.reward >= least))
            and (most is None or (entry.reward is not None and entry.reward <= most))
            and _calls_fit(entry.calls, query.get("tool", ""), query.get("error", ""))
        ]
        words = query.get("q", "").lower().split()
        if words:
            texts = {number for number, (_, record) in enumerate(_records(path)) if _says(record, words)}
            fitting = [entry for entry in fitting if entry.number in texts]
        return _ordered(fitting, query.get("order", "worst"))

    def of_problem(self, run: RunDir, steps: Sequence[int], problem: str) -> list[tuple[int, list[Entry]]]:
        """Return a problem's rollouts over the steps, oldest first; at most ``MOST_STEPS`` steps, the newest."""
        by_step = []
        for step in reversed(steps):
            path = self.file(run, step)
            entries = [entry for entry in self.entries(path) if entry.problem == problem] if path else []
            if entries:
                by_step.append((step, entries))
            if len(by_step) == MOST_STEPS:
                break
        return by_step[::-1]

    def tokens(self, run: RunDir, step: int, number: int) -> dict[str, Any] | None:
        """Return what was measured at the tokens of a rollout, or None where nothing was."""
        path = self._folder.file(run.tokens_file(step))
        if path is None:
            return None
        return next((record for _, record in _records(path) if record.get("rollout") == number), None)


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record of a file of JSON lines with the place where it begins."""
    offset = 0
    with path.open("rb") as file:
        for count, line in enumerate(iter(lambda: file.readline(MOST_CHARACTERS), b"")):
            if count >= MOST_ROLLOUTS:
                return
            record = _parsed(line)
            if record is not None:
                yield offset, record
            offset += len(line)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _entry(number: int, offset: int, record: Mapping[str, Any]) -> Entry:
    tokens = record.get("tokens")
    return Entry(
        number=number,
        offset=offset,
        problem=str(record.get("problem", "")),
        reward=finite_number(record.get("reward")),
        stop=str(record.get("stop_reason") or ""),
        tokens=tokens if isinstance(tokens, int) else 0,
        unscored=record.get("unscored") is not None,
        calls=call_ends(record),
    )


def _calls_fit(calls: frozenset[tuple[str, str]], tool: str, error: str) -> bool:
    if tool == NO_CALLS:
        return not calls
    ends = {end for name, end in calls if tool in ("", name)}
    if tool and not ends:
        return False
    if error in ("", WELL):
        return not error or ends <= {"ok"}
    return bool(ends - {"ok"}) if error == FAILED else error in ends


def _bound(text: str | None) -> float | None:
    try:
        return finite_number(float(text)) if text else None
    except ValueError:
        return None


def _says(record: Mapping[str, Any], words: Sequence[str]) -> bool:
    names = ("problem", "prompt", "completion", "note", "seen", "calls")
    text = " ".join(str(record.get(name, "")) for name in names).lower()
    return all(word in text for word in words)


def _ordered(entries: list[Entry], order: str) -> list[Entry]:
    if order in ("worst", "best"):
        scored = [entry for entry in entries if entry.reward is not None]
        scored.sort(key=lambda entry: entry.reward or 0.0, reverse=order == "best")
        return scored + [entry for entry in entries if entry.reward is None]
    if order in ("longest", "shortest"):
        return sorted(entries, key=lambda entry: entry.tokens, reverse=order == "longest")
    return entries
