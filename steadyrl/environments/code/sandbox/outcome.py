"""What became of a candidate, read from lines that nobody trusts."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any, Literal

from steadyrl.environments.code.sandbox import values

Verdict = Literal[
    "finished", "syntax", "exception", "no_function", "timeout", "memory", "killed", "malformed", "output"
]

_NOTE_SHOWN = 300
_FAILED: dict[str, Verdict] = {"syntax": "syntax", "entry": "no_function", "exception": "exception"}  # by stage


@dataclass(frozen=True)
class Returned:
    """A call came back with a plain value."""

    wire: Any
    """The value's checked wire form; see ``values``. Compare it with ``values.same``."""
    changed: Any = None
    """Wire form of the list of arguments, if the call has changed them and they were asked for."""

    @property
    def value(self) -> Any:
        """The value itself. Only for programs that are trusted: whoever chose it chooses how long this takes."""
        return values.decode(self.wire)


@dataclass(frozen=True)
class Raised:
    """A call raised."""

    type_name: str
    """Name of the exception's type."""
    text: str
    """Its message, cut."""


@dataclass(frozen=True)
class Outcome:
    """How a candidate's run ended; ``finished`` says nothing about whether the values are right."""

    verdict: Verdict
    """"finished": every call returned or raised; "syntax": it did not compile; "exception": its top level raised;
    "no_function": the entry point is not there; "timeout", "memory", "killed" (by a signal, or it left early),
    "malformed" (lines that no worker writes), "output" (too much of it)."""
    results: tuple[Returned | Raised, ...] = ()
    """Those of the first calls, as far as they came; never more than were asked for."""
    note: str = ""
    """A line for a reader."""
    wall_s: float = 0.0
    """Seconds from its first statement until everything of it was gone."""
    compiled: bool = False
    """Whether the candidate was Python at all. It is not known to be if its text ended the compiler."""


def read_outcome(lines: bytes, calls: int, timed_out: bool, status: int, wall_s: float) -> Outcome:
    """Read what came through the pipe.

    Args:
        lines: All of it.
        calls: How many were asked for.
        timed_out: The worker had to end it.
        status: As ``os.waitpid`` gives it.
        wall_s: Seconds that it took.
    """
    results: list[Returned | Raised] = []
    compiled = False
    for line in lines.split(b"\n"):
        if not line:
            continue
        try:
            match values.read_line(line):
                case ["compiled"] if not compiled:
                    compiled = True
                case ["failed", "syntax" | "exception" | "entry" as stage, str(kind), str(text)]:
                    verdict = "memory" if stage == "exception" and kind == "MemoryError" else _FAILED[stage]
                    return Outcome(verdict, tuple(results), _note(f"{kind}: {text}"), wall_s, compiled)
                case ["raised", str(kind), str(text)] if len(results) < calls:
                    results.append(Raised(_note(kind), _note(text)))
                case ["value", wire] if len(results) < calls:
                    values.check(wire)
                    results.append(Returned(wire))
                case ["value", wire, ["list", *_] as changed] if len(results) < calls:
                    values.check(wire)
                    values.check(changed)
                    results.append(Returned(wire, changed))
                case _:
                    raise ValueError("a line of no known form")
        except (ValueError, RecursionError) as error:
            if timed_out:
                break  # the last line of a candidate that was stopped may be cut
            note = _note(f"the values cannot be read ({error})")
            return Outcome("malformed", tuple(results), note, wall_s, compiled)
    end, note = _end(len(results) == calls, results, timed_out, status)
    return Outcome(end, tuple(results), note, wall_s, compiled)


def _note(text: str) -> str:
    # Halves of surrogate pairs, which no file can hold, are written as escapes.
    return text[:_NOTE_SHOWN].encode("utf-8", "backslashreplace").decode("utf-8")


def _end(complete: bool, results: list[Returned | Raised], timed_out: bool, status: int) -> tuple[Verdict, str]:
    if timed_out:
        return "timeout", "the time was up"
    if complete:
        return "finished", ""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return "timeout", "the processor time was used up"
    if any(isinstance(result, Raised) and result.type_name == "MemoryError" for result in results):
        return "memory", "out of memory"
    code = os.waitstatus_to_exitcode(status)
    return "killed", f"it ended early, with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
