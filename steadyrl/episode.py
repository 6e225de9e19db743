"""Problems that answer back: what a task offers whose attempts take several turns."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from steadyrl.types import Problem, Tokenizer

CUT = " ..."  # tells the policy that an observation goes on


@dataclass(frozen=True)
class Turn:
    """What the world answers to one turn of the policy.

    Attributes:
        observation: Put in before the policy's next turn; empty when done.
        done: True if the episode is over.
    """

    observation: str
    done: bool


class Episode(Protocol):
    """One attempt at a problem that answers back; used by one thread at a time.

    All methods but ``expert`` may raise ``EpisodeError`` when the world itself broke: the rollout is then unscored.
    """

    def open(self) -> str:
        """Begin, and return the first observation."""

    def step(self, text: str) -> Turn:
        """Take a turn of the policy, decoded and stripped; a malformed one costs, it does not raise."""

    def expert(self) -> str | None:
        """Return what one who knows the way would say now, or None where nobody does."""

    def close(self) -> Mapping[str, Any]:
        """End the episode, however far it came, and return what it came to: JSON-serialisable, for the rewards."""


@runtime_checkable
class Interactive(Protocol):
    """A task whose problems answer back, over several turns."""

    max_turns: int
    """Turns of the policy, at most."""
    workers: int
    """Episodes that are stepped at the same time, in threads."""

    def episode(self, problem: Problem, seed: int) -> Episode:
        """Return a fresh attempt; equal seeds meet equal worlds."""


def cut_observation(tokenizer: Tokenizer, text: str, limit: int) -> str:
    """Return an observation that takes at most ``limit`` tokens: the whole of it, or its first ones and ' ...'.

    The last line, which may ask for the turn, stays behind the mark. Both count; what of them would take more than half
    of the limit is left out. What a chat template puts around an observation does not count. The text is cut and not
    its ids, for templates are filled with text.

    Args:
        tokenizer: The policy's.
        text: What the world answered.
        limit: > 0.
    """
    around = len(tokenizer.encode_turn("", True))

    def takes(part: str) -> int:
        return len(tokenizer.encode_turn(part, True)) - around

    if takes(text) <= limit:
        return text
    before, _, last = text.rpartition("\n")
    ends = (f"{CUT}\n{last}" if before else CUT, CUT, "")
    end = next(end for end in ends if 2 * takes(end) <= limit)
    kept = bisect.bisect_right(range(len(text)), limit, key=lambda length: takes(text[:length] + end)) - 1
    return text[: max(0, kept)] + end
