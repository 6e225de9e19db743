"""A recorded rollout as a conversation: what the policy read and wrote, the calls, their results and what turns earned.

A record is a line of rollouts/*.jsonl and may hold anything; what does not fit is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from steadyrl.core.types import call_line
from steadyrl.show.review.epochs import finite_number

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


def cut(value: Any, most: int) -> str:
    """Return a text of at most so many characters, and how many more there are."""
    text = str(value or "")
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} more characters)"


def recorded_calls(record: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    """Return the calls of each turn, in order."""
    return [[call for call in _list(turn) if isinstance(call, dict)] for turn in _list(record.get("calls"))]


def call_ends(record: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return the calls of an episode as pairs: the tool's name, and what became of the call."""
    return frozenset((_name(call), str(call.get("end"))) for turn in recorded_calls(record) for call in turn)


def failures(record: Mapping[str, Any]) -> list[str]:
    """Return what went wrong in the calls of an episode, in words, each with its count where it is above 1."""
    ends = Counter(str(call.get("end")) for turn in recorded_calls(record) for call in turn)
    words = [(FAILURES.get(end, end), count) for end, count in ends.items() if end != "ok"]
    return [text if count == 1 else f"{count} × {text}" for text, count in words]


def opening(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the policy read before its first turn as messages with a role and a text."""
    messages = [message for message in _list(record.get("messages")) if isinstance(message, dict)]
    shown = [_message(str(message.get("role", "")), message.get("content"), message) for message in messages]
    if not shown and record.get("prompt"):
        shown = [_message("problem" if record.get("turns") else "", record["prompt"])]
    first = str(next(iter(_list(record.get("seen"))), ""))
    texts = "\n".join(message["text"] for message in shown)
    if texts and texts in first:  # the environment's own opening holds the problem
        return shown if texts == first else [_message("environment", first)]
    return [*shown, _message("environment", first)] if first else shown


def turn_messages(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the turns of an episode as messages: the policy's with their calls, and what was answered beside results.

    A message of the policy has a "turn" counted from 1, the "reward" of the turn (None where it has none), "calls"
    with a line, a result, "failed" (words, or "") and "seconds", and the "seconds" of all.
    """
    seen, calls, rewards = _list(record.get("seen")), recorded_calls(record), _list(record.get("turn_rewards"))
    messages: list[dict[str, Any]] = []
    for at, text in enumerate(_list(record.get("turns"))):
        of_turn = calls[at] if at < len(calls) else []
        messages.append(
            {
                **_message("policy", text),
                "turn": at + 1,
                "reward": finite_number(rewards[at]) if at < len(rewards) else None,
                "calls": [_call(call) for call in of_turn],
                "seconds": sum(finite_number(call.get("seconds")) or 0.0 for call in of_turn),
            }
        )
        answer = _beside_results(str(seen[at + 1]), of_turn) if at + 1 < len(seen) else ""
        messages += [_message("environment", answer)] if answer else []
    return messages


def _message(role: str, text: Any, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
    requests = [call.get("function") for call in _list((message or {}).get("tool_calls")) if isinstance(call, dict)]
    calls = [_call(request) for request in requests if isinstance(request, dict)]
    return {"role": role, "text": cut(text, LONGEST), "calls": calls, "turn": None}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments")
    named = call_line(_name(call), arguments) if isinstance(arguments, dict) else f"{_name(call)}({arguments or ''})"
    end = call.get("end")
    unread = end == "malformed" and isinstance(arguments, dict)
    return {
        "line": cut(arguments.get("text") if unread and arguments else named, LONGEST),
        "result": None if end is None else cut(call.get("result"), LONGEST),
        "failed": "" if end in (None, "ok") else FAILURES.get(str(end), str(end)),
        "seconds": finite_number(call.get("seconds")),
    }


def _beside_results(seen: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return what the policy read behind a turn beside the results of its calls, which stand at the calls.

    A result that was cut before the policy read it is shown here as well, as it was read.
    """
    results = "\n".join(str(call.get("result", "")) for call in calls)
    if results.startswith(seen):  # the record of what was read ends within the results
        return ""
    return seen[len(results) :].removeprefix("\n") if seen.startswith(results) else seen


def _name(call: Mapping[str, Any]) -> str:
    return str(call.get("name") or "")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
