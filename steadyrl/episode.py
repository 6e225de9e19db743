"""Problems that answer back: what a task offers whose attempts take several turns."""

from __future__ import annotations

import bisect

from steadyrl.protocols import Tokenizer

CUT = " ..."  # tells the policy that an observation goes on


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
