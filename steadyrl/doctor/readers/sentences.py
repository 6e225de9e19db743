"""Courses that sentences state: where a metric began and ended, at which level it stayed, or that it is NaN."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from steadyrl.doctor.readers.spelling import spelled
from steadyrl.doctor.readers.tables import COURSES, MAX_TEXT, VALUE, VALUES
from steadyrl.doctor.series import STAYED, Evaluation

TEXTS = (".md", ".markdown", ".rst", ".txt")
# "the mean KL rose quickly from 0.1 to 0.3"
_METRIC = r"(?:loss|rewards?|score|kl|entropy|gradient norm|length)(?: divergence| mean| std)?"
_MOVES = (
    r"\w+ly|was|went|goes|rose|rises|fell|falls|grew|grows|sank|came|"
    r"(?:climb|drop|jump|spik|explod|collaps|increas|decreas|declin|improv|mov|decay|shr[aiu]nk)\w*"
)
SENTENCES = re.compile(
    rf"((?:\b(?!(?:the|our|its|and|but|while|with|a)\b)[\w/]+ ){{0,2}}\b{_METRIC})\b[*`]{{0,3}}"
    rf"(?:(?: (?:{_MOVES})){{1,2}}(?: from)?| from)\W{{1,4}}?({COURSES})(?!\w|\.\d)",
    re.IGNORECASE,
)
_NUMBER, _SAME = r"-?\d++(?:\.\d++)?", r"[^\d\u3002\uff0c,]"  # and a character inside a clause
# "reward从0.9下降到0.3"
CHINESE = re.compile(
    r"(?<![A-Za-z_])([A-Za-z_]{0,40}?(?:reward|kl|entropy|loss|accuracy)\w{0,40}|奖励|獎勵|熵)"
    rf"{_SAME}{{0,12}}[从從由] ?({_NUMBER})(?![\d%])"
    rf"{_SAME}{{0,16}}[至到](?:\s?step ?\d+的)?{_SAME}{{0,6}}?({_NUMBER})(?![\d%])",
    re.IGNORECASE,
)
# "the loss becomes nan", "policy_loss, entropy and grad_norm are all NaN"
BROKEN = re.compile(
    r"(?<![\w/])([\w/]{0,40}?(?:loss|\bkl|entropy|grad|logits?|log_?probs?)\w{0,40})[`*]{0,3} (?:(?:values?|norms?) )?"
    r"(?:is|are|was|were|becomes?|became|goes?|went|turns?|turned|shows?|all)\b(?: (?:to|all|always|into)){0,2}"
    r" \W{0,2}nan\b",
    re.IGNORECASE,
)
OF_ANOTHER = "".join(rf"(?<!{word}[ -])" for word in ("random", "baseline", "base", "control", "placebo"))
STAYS = re.compile(
    rf"(?<![\w-])((?:[\w/]+ ){{0,2}}\b{OF_ANOTHER}(?:rewards?|score|accuracy|success rate|pass@1))\b[*`:]{{0,3}} "
    r"(?:(?:is|was|has|had|mean|then|just|mostly|still|simply|almost|basically|always) ){0,2}"
    r"(?:stays?|stayed|stuck|flat|hovers?|hovered)\b(?: [a-z]+){0,3}? \W{0,3}"
    rf"({VALUE})(?: ?[-\u2013~] ?({VALUE}))?",
    re.IGNORECASE,
)
# A text that warns of something does not say that it was so.
WARNED = re.compile(r"\b(?:if|when(?:ever)?|may|might|can|could|would|avoids?|prevents?|unless)\b", re.IGNORECASE)


def courses(text: Iterable[str]) -> Iterator[Evaluation]:
    """Yield what the sentences of some lines say of the course of a metric."""
    for line in (line[:MAX_TEXT] for line in text):
        stated = [(name, VALUES.findall(course)) for name, course in SENTENCES.findall(line)]
        stated += [(name, ends) for name, *ends in CHINESE.findall(line)]
        for name, texts in stated:
            first, last = (spelled(texts[i].lstrip("~")) for i in (0, -1))
            if first is not None and last is not None:
                yield Evaluation(name, first, last, stages=("begins", "ends"), course=True)
        if WARNED.search(line):
            continue
        yield from (Evaluation(name, math.nan, math.nan, stages=STAYED, course=True) for name in BROKEN.findall(line))
        for name, *ends in STAYS.findall(line):
            low, high = (spelled((end or ends[0]).lstrip("~")) for end in ends)
            if low is not None and high is not None:
                yield Evaluation(name, (low + high) / 2.0, high, stages=STAYED, course=True)
