"""The form of the answers: told from the completions themselves, where a log holds them."""

from __future__ import annotations

import re
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from steadyrl.core.types import Severity
from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.series import Run, Written
from steadyrl.doctor.statistics.readings import number

ENDS = 400  # completions of the first and of the last steps that are compared
FEWEST_TEXTS, FEWEST_PROMPTS = 40, 10
FEW_TEMPLATES = 0.5  # of the answers have one and the same template, or one of two
MOSTLY_REPEATED = 0.5  # of the answers repeat a word, be it since the start
MOST_OF_ALL = 0.8
SAME_ANSWERS = 0.5  # of the answers, whatever their prompts, are one and the same
REPEATED_WORDS = 0.3  # of the answers consist of words that they repeat
SHORT = 12  # words: longer answers have templates of their own
LEAST_WORDS = 2  # a number or a word alone has no form that answers could share
EARLY = 1 / 3  # of a log's steps: completions from there alone say nothing about its end
DENSE = 0.2  # bytes after compression over bytes before: text that says one thing over and over
DENSE_BYTES = 200  # shorter texts do not compress by their own repetition
LOOPED = 0.5  # of the triples of words in a text of more than 12 words stood in it before
GREW = 0.2  # share at the end above that at the start: what was there before training is the task's own form
WORD = re.compile(r"\d[\d.,]*\d|\w+|[^\w\s]")


@dataclass(frozen=True)
class Form:
    """What some answers have in common."""

    texts: int
    prompts: int
    """How many."""
    distinct: float
    """Distinct answers over answers."""
    commonest: tuple[str, float]
    """The commonest answer, and its share."""
    templates: tuple[str, ...]
    """The commonest template (words that answers rarely share are written "w"), and the second one where it has as many
    words, such as "w AND w" beside "w OR w"."""
    alike: float
    """The share of the answers that have one of these."""
    repeated: float
    """Share of the short answers that hold one word twice in the template's open places."""
    loops: float
    """Share of the answers that say one thing over and over: they compress to a fifth, or half of their triples of
    words repeat."""


def form_of(written: Sequence[Written]) -> Form | None:
    """Measure the form of some answers, or None where there are too few of them or of their prompts."""
    texts = [sample.completion.strip() for sample in written]
    if len(texts) < FEWEST_TEXTS:
        return None
    answers = Counter(texts)
    answer, times = answers.most_common(1)[0]
    answer_words = [WORD.findall(text) for text in texts]
    word_counts = Counter(word for words in answer_words for word in set(words))
    # Of the words of a form most answers hold each; what fills its places differs from answer to answer.
    fixed = {word for word, count in word_counts.items() if count > MOST_OF_ALL / 2 * len(texts)}
    short = [words for words in answer_words if len(words) <= SHORT and sum(map(_is_word, words)) >= LEAST_WORDS]
    templates = Counter(" ".join(w if w in fixed else "w" for w in words) for words in short)
    common = templates.most_common(2)
    common = [pair for pair in common if len(pair[0].split()) == len(common[0][0].split())]
    filled = [[w.lower() for w in words if w not in fixed and _is_word(w)] for words in short]
    repeating = sum(len(set(words)) < len(words) for words in filled)
    loops = sum(_loops(text.encode(), words) for text, words in zip(texts, answer_words, strict=True))
    return Form(
        texts=len(texts),
        prompts=len({sample.prompt for sample in written}),
        distinct=len(answers) / len(texts),
        commonest=(answer, times / len(texts)),
        templates=tuple(template for template, _ in common),
        alike=sum(count for _, count in common) / len(texts),
        repeated=repeating / len(texts),
        loops=loops / len(texts),
    )


def _is_word(token: str) -> bool:
    return token[0].isalnum() or token[0] == "_"


def _loops(text: bytes, words: Sequence[str]) -> bool:
    triples = list(zip(words, words[1:], words[2:], strict=False))
    if len(words) > SHORT and len(set(triples)) < LOOPED * len(triples):
        return True
    return len(text) >= DENSE_BYTES and len(zlib.compress(text, 6)) < DENSE * len(text)


def _ends(run: Run) -> tuple[list[Written], list[Written]]:
    """Return the completions of the first and of the last third of the steps, of each no more than 400."""
    samples = iter(run.completions)
    first = list(islice(samples, ENDS))
    last = list(deque(chain(first, samples), maxlen=ENDS))
    steps = sorted({sample.step for sample in (*first, *last)})
    third = max(1, len(steps) // 3)
    early, late = steps[third - 1 : third], steps[-third:][:1]
    return (
        [sample for sample in first if not early or sample.step <= early[0]],
        [sample for sample in last if not late or sample.step >= late[0]],
    )


@check("answers_alike")
def answers_alike(run: Run) -> Result | list[Result]:
    first, last = _ends(run)
    late = form_of(last)
    if late is None:
        message = f"the log holds {len(last)} completions; it takes {FEWEST_TEXTS}"
        return Unknown(message if last else "the log holds no completions", ("completions",))
    begin, end = run.span
    if end > begin and last[-1].step < begin + EARLY * (end - begin):
        message = f"the newest completions in the log are of step {last[-1].step}, and it goes on to step {end}"
        return Unknown(message, ("completions",))
    early = form_of(first) if last and first and first[-1].step < last[0].step else None
    onset = last[0].step
    many_prompts = late.prompts >= FEWEST_PROMPTS
    if many_prompts and late.commonest[1] > SAME_ANSWERS:
        return Found(
            "ignores_prompt",
            "warning",
            onset,
            f"{percent(late.commonest[1])} of the answers to {late.prompts} prompts are one text, whatever was asked",
            (f"the answer: {_quoted(late.commonest[0])}", f"distinct answers over answers: {number(late.distinct)}"),
        )
    early_loops, early_repeated, early_alike = (early.loops, early.repeated, early.alike) if early else (0.0, 0.0, 0.0)
    severity: Severity = "warning" if early else "info"
    twice = f"{percent(late.repeated)} of the last {late.texts} answers hold a word twice where words should differ"
    if late.loops > max(REPEATED_WORDS, early_loops + GREW):
        message = f"{percent(late.loops)} of the last {late.texts} answers say one thing over and over"
        return Found("repeats_itself", severity, onset, message, _evidence(early_loops, late))
    if late.repeated > max(REPEATED_WORDS, early_repeated + GREW):
        return Found("repeated_words", severity, onset, twice, _evidence(early_repeated, late))
    results: list[Result] = []
    open_places = any("w" in template.split() for template in late.templates)
    if many_prompts and open_places and late.alike > max(FEW_TEMPLATES, early_alike + GREW):
        forms = " or ".join(map(_quoted, late.templates))
        message = f"{percent(late.alike)} of the last {late.texts} answers have one form: {forms}"
        severity = severity if late.alike > MOST_OF_ALL else "info"
        results.append(Found("one_template", severity, onset, message, _evidence(early_alike, late)))
    if late.repeated > MOSTLY_REPEATED:
        results.append(Found("repeated_words", "info", onset, twice, _evidence(early_repeated, late)))
    return results


def _evidence(early_share: float, late: Form) -> tuple[str, ...]:
    common = " or ".join(map(_quoted, late.templates)) or "none that is shared"
    return (
        f"at the start of the log that share was {percent(early_share)}",
        f"distinct answers over answers {number(late.distinct)}; the commonest form is {common}",
    )


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return f"'{line[:80]}{'...' if len(line) > 80 else ''}'"
