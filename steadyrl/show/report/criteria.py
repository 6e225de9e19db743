"""The bounds that several experiments of a study share, and which experiment meets which of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from steadyrl.lab.study.file import ABSOLUTE, Expect
from steadyrl.lab.study.outcome import Outcome, meets, middle, values_of
from steadyrl.lab.study.plan import Study
from steadyrl.lab.study.study import DONE
from steadyrl.show.page import markup
from steadyrl.show.page.records import Heading, Note, Record, Span, Table, Text, numbers, strong

LEAST_ARMS = 2  # that name a bound: one of a single experiment is in its own section


def criteria(study: Study, outcomes: Sequence[Outcome]) -> list[Record]:
    """Return the table of all experiments against all shared bounds; nothing where no bound is shared.

    An experiment is measured against every one of them, whether it names it or not. Where some experiments expect a
    number above a bound and others below it, the direction that more of them expect is taken.

    Args:
        study: Whose rule says how a curve becomes a number.
        outcomes: What became of its experiments.
    """
    named = [
        (_bound(study, expect), expect)
        for outcome in outcomes
        for expect in outcome.arm.experiment.expect
        if expect.be in ABSOLUTE
    ]
    arms = Counter(bound for bound, _ in named)
    shared = [
        _usual([e for named_bound, e in named if named_bound == bound]) for bound in arms if arms[bound] >= LEAST_ARMS
    ]
    if not shared:
        return []
    rows = [
        (Span(outcome.arm.name, href=f"#{outcome.arm.name}"), *(_cell(study, outcome, expect) for expect in shared))
        for outcome in outcomes
    ]
    return [
        Heading("All experiments against the same bounds"),
        Note(
            "The bounds that several experiments name, and the level of every experiment over its seeds. Bold numbers "
            "meet the bound in every seed."
        ),
        Table(("experiment", *numbers(*(_head(study, expect) for expect in shared))), rows),
    ]


def _bound(study: Study, expect: Expect) -> tuple[str, str, float | None]:
    return expect.metric or study.file.metric, expect.take, expect.value


def _usual(expects: Sequence[Expect]) -> Expect:
    """Return the first expectation of the direction that most of them have."""
    direction, _ = Counter(expect.be for expect in expects).most_common(1)[0]
    return next(expect for expect in expects if expect.be == direction)


def _head(study: Study, expect: Expect) -> str:
    return f"{expect.says} ({expect.metric or study.file.metric}, {expect.be} {expect.value:g})"


def _cell(study: Study, outcome: Outcome, expect: Expect) -> Text:
    """Return the level of an experiment over its seeds, and in how many of them the bound is met."""
    runs = [run for run in outcome.runs if run.state in (*DONE, "failed")]
    values = values_of(runs, expect.metric or study.file.metric, expect.take, study.file.rule)
    level = middle(values)
    if level is None:
        return "not measured" if runs else "no run yet"
    met = sum(meets(expect, value) for value in values)
    word = "met" if met else "missed"
    verdict = word if len(values) == 1 else f"met in {met} of {len(values)}"
    text = f"{markup.number(level)}, {verdict}"
    return strong(text) if met == len(values) else text
