"""A judge that needs no server: how much likelier a frozen model finds a text given the request.

The score is 1 / (1 + exp(-ratio / nats)), where ratio is the mean over the text's tokens of
log p(token | request, text so far) - log p(token | text so far), or, with a second model, of the difference between the
log-probs of the two, both given the request. It says how typical a text is of what follows such a request, in that
model's eyes. It is no opinion on whether the text is right: a likely wrong answer beats an unlikely right one.
`steadyrl judge` measures how far it agrees with tests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from steadyrl.core import plugins
from steadyrl.core.types import encodable
from steadyrl.loop.rewards.judge.modes import Contest, Opinion
from steadyrl.loop.rewards.judge.settings import JudgeSettings


class LikelihoodPanel:
    """Opinions by likelihood; deterministic, so that nothing is asked twice or kept."""

    def __init__(self, section: JudgeSettings):
        """Load the frozen model.

        Raises:
            MissingExtraError: torch is not installed.
            ModelError: There is no such model.
        """
        build = plugins.load("judge", "likelihood")
        # Nats per token for each (request, text); None where a text is longer than the model can read.
        self._ratios: Callable[[Sequence[tuple[str, str]]], list[float | None]] = build(section.model, section.baseline)
        self._nats = section.nats
        self._texts, self._seconds = 0, 0.0

    def opinions(self, contests: Sequence[Contest]) -> list[dict[str, Opinion]]:
        """Return for each contest an opinion by text."""
        began = time.monotonic()
        pairs = [(encodable(contest.request), encodable(text)) for contest in contests for text in contest.texts]
        ratios = iter(self._ratios(pairs))
        opinions = [{text: self._opinion(next(ratios)) for text in contest.texts} for contest in contests]
        self._texts += len(pairs)
        self._seconds += time.monotonic() - began
        return opinions

    def drain(self) -> dict[str, float]:
        """Return how many texts were read since the last call, and how long each took."""
        texts, seconds, self._texts, self._seconds = self._texts, self._seconds, 0, 0.0
        return {"judge/verdicts": float(texts), "judge/latency": seconds / texts} if texts else {}

    def _opinion(self, ratio: float | None) -> Opinion:
        if ratio is None:
            return Opinion(None, reason="the text is longer than the judge's model can read")
        return Opinion(score_of(ratio, self._nats), {"ratio": ratio})


def score_of(ratio: float, nats: float) -> float:
    """Map a ratio in nats per token to (0, 1): 0 nats to a half."""
    return 0.5 * (1.0 + math.tanh(ratio / (2.0 * nats)))
