"""Recorded rollouts: a small index of each file, so that one of 50 MB opens at once, and a rollout as a conversation.

Only what is shown is kept. A record is a line of rollouts/*.jsonl and may hold anything; what does not fit is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from steadyrl.core.metrics import finite_number
from steadyrl.core.rundir import MOST_CHARACTERS, RunDir, appended, json_object, stamp
from steadyrl.core.types import call_line
from steadyrl.show.page.markup import shorten
from steadyrl.show.web.folder import Folder

KEPT_FILES = 24  # indices that are kept
MOST_ROLLOUTS, MOST_BYTES = 200_000, 1 << 30  # of a file
MOST_STEPS = 60  # that one problem is shown over
NO_CALLS, FAILED, WELL = "(none)", "any error", "no error"  # choices of a filter beside names and ends
ORDERS = ("file", "worst", "best", "longest", "shortest")
LONGEST = 200_000  # characters of a text on its own page
# What became of a call, in words; see ``CallEnd``.
FAILURES = {
    "malformed": "could not be read",
    "unknown": "no such tool",
    "arguments": "wrong arguments",
    "raised": "the tool raised",
    "timeout": "took too long",
    "budget": "no calls left",
}


@dataclass(frozen=True)
class RolloutRow:
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

    def file(self, run: RunDir, step: int) -> Path | None:
        """Return the file of a step's rollouts, or None if there is none in the folder, or one that is no such file."""
        path = self._folder.file(run.rollouts_file(step))
        return path if path and path.stat().st_size <= MOST_BYTES else None

    def rows(self, path: Path) -> list[RolloutRow]:
        """Return all rollouts of a file, in its order."""
        return _rows(path, stamp(path))

    def records(self, path: Path, rows: Sequence[RolloutRow]) -> list[dict[str, Any]]:
        """Return the whole records of some entries of a file."""
        records = []
        with path.open("rb") as file:
            for row in rows:
                file.seek(row.offset)
                records.append(json_object(file.readline(MOST_CHARACTERS)) or {})
        return records

    def choose(self, path: Path, query: Mapping[str, str]) -> list[RolloutRow]:
        """Return the entries of a file that fit, in the order wanted.

        Args:
            path: A file of rollouts.
            query: "problem", "stop", "least" and "most" (of the reward), "tool" (a name, or ``NO_CALLS``), "error" (an
                end of a call of that tool, ``FAILED`` or ``WELL``), "q" (words in its texts) and "order", one of
                ``ORDERS``.
        """
        rows = self.rows(path)
        low, high = _bound(query.get("least")), _bound(query.get("most"))
        problem, stop = query.get("problem", ""), query.get("stop", "")
        matches = [
            row
            for row in rows
            if problem in ("", row.problem)
            and (stop in ("", row.stop) or (stop == "unscored" and row.unscored))
            and (low is None or (row.reward is not None and row.reward >= low))
            and (high is None or (row.reward is not None and row.reward <= high))
            and _calls_fit(row.calls, query.get("tool", ""), query.get("error", ""))
        ]
        words = query.get("q", "").lower().split()
        if words:
            names = ("problem", "prompt", "completion", "note", "seen", "calls")
            records = (record for *_, record in appended(path) if record)
            texts = (" ".join(str(record.get(name, "")) for name in names).lower() for record in records)
            numbers = {number for number, text in enumerate(texts) if all(word in text for word in words)}
            matches = [row for row in matches if row.number in numbers]
        order = query.get("order", "worst")
        if order in ("worst", "best"):
            scored = [row for row in matches if row.reward is not None]
            scored.sort(key=lambda row: row.reward or 0.0, reverse=order == "best")
            return scored + [row for row in matches if row.reward is None]
        if order in ("longest", "shortest"):
            return sorted(matches, key=lambda row: row.tokens, reverse=order == "longest")
        return matches

    def of_problem(self, run: RunDir, steps: Sequence[int], problem: str) -> list[tuple[int, list[RolloutRow]]]:
        """Return a problem's rollouts over the steps, oldest first; at most ``MOST_STEPS`` steps, the newest."""
        by_step = []
        for step in reversed(steps):
            path = self.file(run, step)
            rows = [row for row in self.rows(path) if row.problem == problem] if path else []
            if rows:
                by_step.append((step, rows))
            if len(by_step) == MOST_STEPS:
                break
        return by_step[::-1]

    def tokens(self, run: RunDir, step: int, number: int) -> dict[str, Any] | None:
        """Return what was measured at the tokens of a rollout, or None where nothing was."""
        path = self._folder.file(run.tokens_file(step))
        if path is None:
            return None
        return next((record for *_, record in appended(path) if record.get("rollout") == number), None)


@lru_cache(maxsize=KEPT_FILES)
def _rows(path: Path, written: tuple[int, int]) -> list[RolloutRow]:
    # The stamp is a part of the cache's key: a file that has grown is read again.
    lines = enumerate(line for line in islice(appended(path), MOST_ROLLOUTS) if line[-1])
    return [
        RolloutRow(
            number=number,
            offset=offset,
            problem=str(record.get("problem", "")),
            reward=finite_number(record.get("reward")),
            stop=str(record.get("stop_reason") or ""),
            tokens=tokens if isinstance(tokens := record.get("tokens"), int) else 0,
            unscored=record.get("unscored") is not None,
            calls=frozenset((_name(call), str(call.get("end"))) for turn in recorded_calls(record) for call in turn),
        )
        for number, (offset, _, record) in lines
    ]


def _calls_fit(calls: frozenset[tuple[str, str]], tool: str, error: str) -> bool:
    if tool == NO_CALLS:
        return not calls
    ends = {end for name, end in calls if tool in ("", name)}
    if tool and not ends:
        return False
    if error in ("", WELL):
        return not error or ends <= {"ok"}
    return bool(ends - {"ok"}) if error == FAILED else error in ends


def call_filters(rows: Sequence[RolloutRow]) -> dict[str, list[tuple[str, str]]]:
    """Return the choices of tools and of errors, each with its words; none where no tool was called."""
    calls = frozenset[tuple[str, str]]().union(*(row.calls for row in rows))
    if not calls:
        return {"tools": [], "errors": []}
    # A policy may make up any name, and those stand under the errors.
    tools = sorted({name for name, end in calls if end not in ("unknown", "malformed")})
    ends = [end for end in FAILURES if any(end == call_end for _, call_end in calls)]
    return {
        "tools": [(name, name) for name in tools] + [(NO_CALLS, "no call")],
        "errors": [(end, FAILURES[end]) for end in ends] + [(FAILED, FAILED), (WELL, WELL)],
    }


def _bound(text: str | None) -> float | None:
    try:
        return finite_number(float(text)) if text else None
    except ValueError:
        return None


def recorded_calls(record: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    """Return the calls of each turn, in order."""
    return [[call for call in _list(turn) if isinstance(call, dict)] for turn in _list(record.get("calls"))]


def failures(record: Mapping[str, Any]) -> list[str]:
    """Return what went wrong in the calls of an episode, in words, each with its count where it is above 1."""
    ends = Counter(str(call.get("end")) for turn in recorded_calls(record) for call in turn)
    words = [(FAILURES.get(end, end), count) for end, count in ends.items() if end != "ok"]
    return [text if count == 1 else f"{count} × {text}" for text, count in words]


def episode(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of turns and of calls, and what went wrong in the calls."""
    turns = record.get("turns")
    calls = sum(map(len, recorded_calls(record)))
    return {"turns": len(turns) if isinstance(turns, list) else 0, "calls": calls, "failures": failures(record)}


def opening(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the policy read before its first turn as messages with a role and a text."""
    messages = [m for m in _list(record.get("messages")) if isinstance(m, dict)]
    prompt_messages = [_message(str(m.get("role", "")), m.get("content"), m) for m in messages]
    if not prompt_messages and record.get("prompt"):
        prompt_messages = [_message("problem" if record.get("turns") else "", record["prompt"])]
    first = str(next(iter(_list(record.get("seen"))), ""))
    texts = "\n".join(message["text"] for message in prompt_messages)
    if texts and texts in first:  # the environment's own opening holds the problem
        return prompt_messages if texts == first else [_message("environment", first)]
    return [*prompt_messages, _message("environment", first)] if first else prompt_messages


def turn_messages(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the turns of an episode as messages: the policy's with their calls, and what was answered beside results.

    A message of the policy has a "turn" counted from 1, the "reward" of the turn (None where it has none), "calls"
    with a line, a result, "failed" (words, or "") and "seconds", and the "seconds" of all.
    """
    observations, rewards = (_list(record.get(name)) for name in ("seen", "turn_rewards"))
    calls = recorded_calls(record)
    messages: list[dict[str, Any]] = []
    for i, text in enumerate(_list(record.get("turns"))):
        of_turn = calls[i] if i < len(calls) else []
        messages.append(
            {
                **_message("policy", text),
                "turn": i + 1,
                "reward": finite_number(rewards[i]) if i < len(rewards) else None,
                "calls": [_call(call) for call in of_turn],
                "seconds": sum(finite_number(call.get("seconds")) or 0.0 for call in of_turn),
            }
        )
        answer = _beside_results(str(observations[i + 1]), of_turn) if i + 1 < len(observations) else ""
        messages += [_message("environment", answer)] if answer else []
    return messages


def _message(role: str, text: Any, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
    requests = [call.get("function") for call in _list((message or {}).get("tool_calls")) if isinstance(call, dict)]
    calls = [_call(request) for request in requests if isinstance(request, dict)]
    return {"role": role, "text": shorten(text, LONGEST), "calls": calls, "turn": None}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments")
    named = call_line(_name(call), arguments) if isinstance(arguments, dict) else f"{_name(call)}({arguments or ''})"
    end = call.get("end")
    unread = end == "malformed" and isinstance(arguments, dict)
    return {
        "line": shorten(arguments.get("text") if unread and arguments else named, LONGEST),
        "result": None if end is None else shorten(call.get("result"), LONGEST),
        "failed": "" if end in (None, "ok") else FAILURES.get(str(end), str(end)),
        "seconds": finite_number(call.get("seconds")),
    }


def _beside_results(observation: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return what the policy read behind a turn beside the results of its calls, which stand at the calls.

    A result that was cut before the policy read it is shown here as well, as it was read.
    """
    results = "\n".join(str(call.get("result", "")) for call in calls)
    if results.startswith(observation):  # the record of what was read ends within the results
        return ""
    return observation[len(results) :].removeprefix("\n") if observation.startswith(results) else observation


def _name(call: Mapping[str, Any]) -> str:
    return str(call.get("name") or "")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
