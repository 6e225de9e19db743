"""Writes the report of a study: report.md, a picture per experiment, and one page with curves that can be explored.

Every number in the text comes from the run directories. The same runs give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.metrics import describe
from steadyrl.core.rundir import write_json, write_text
from steadyrl.core.words import counted, shell_command
from steadyrl.lab.seeds import LEAST_SEEDS, interval
from steadyrl.lab.study.file import ABSOLUTE, Expect
from steadyrl.lab.study.outcome import ArmResult, Claim, Judged, arm_results, claims, meets, seed_mean, values_of
from steadyrl.lab.study.plan import Study, jobs
from steadyrl.lab.study.study import DONE, require_runs
from steadyrl.show.page import html, markdown, markup, records
from steadyrl.show.report.pictures import curves as pictures
from steadyrl.show.report.pictures.curves import curves
from steadyrl.show.report.topics import COMPARED, TAKES

ENOUGH_SEEDS = 5  # of each arm: with so many, a difference of two standard deviations is found in 60 % of studies
MOST_CAUSES = 3  # of the doctor's, in an experiment's section
SENTENCE_ENDS = (".", "!", "?")
LEAST_ARMS = 2  # that name a bound: one of a single experiment is in its own section


def write_study(study: Study, root: Path, to: Path | None = None) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Write the report of a study into its folder, or into ``to``.

    Returns:
        The page, and what summary.json holds: verdict, finding, expectations and runs by experiment.

    Raises:
        ConfigError: No run of it is there.
        RunError: The rule by which the study is judged is another one than before its first run.
        AccessError: The folder cannot be written.
    """
    folder, changes = require_runs(study, root)
    results = arm_results(study, folder)
    to = to or folder / "report"
    metrics = {result.arm.name: [run.records for run in result.runs] for result in results}
    metric = pictures.Topic(study.file.metric, (study.file.metric,))  # of many experiments only one panel can be read
    pictured = [name for name in study.file.picture or metrics if metrics[name]]  # those that the file names, else all
    topics = pictures.TOPICS if study.file.picture else (metric,)
    overlays = {"answer.svg": pictures.overlay({name: metrics[name] for name in pictured}, topics)}
    for result in results:
        if metrics[result.arm.name]:  # over what the experiment starts from
            arms = [arm for arm in (result.arm.experiment.base, result.arm.name) if arm in metrics]
            overlays[f"{result.arm.name}.svg"] = pictures.overlay({arm: metrics[arm] for arm in arms})
    svgs = {file: svg for file, svg in overlays.items() if svg is not None}
    for file, svg in svgs.items():
        write_text(to / file, svg)
    summary = {
        result.arm.name: {
            "verdict": result.word,
            "finding": _finding(study, result),
            "expectations": [
                {"says": j.expect.says, "verdict": j.word, "values": list(j.values), "others": list(j.than_values)}
                for j in result.judged
            ],
            "runs": [{"seed": m.seed, "state": m.state, "steps": m.steps} for m in result.runs],
        }
        for result in results
    }
    explored = curves(metrics, "report.html", pictured[:4])
    page = study_view(study, results, svgs, explored, _limits(study, results, changes))
    write_json(to / "summary.json", summary)
    write_text(to / "report.md", markdown.page(page))
    write_text(to / "report.html", html.page(study.file.title, page))
    return to / "report.html", summary


def study_view(
    study: Study, results: Sequence[ArmResult], svgs: Mapping[str, str], explored: records.Curves, limits: str
) -> list[records.Record]:
    """Return what every page shows of a study; ``svgs`` are SVG texts by file: the answer and the experiments run."""
    experiments = [records.Heading("Every experiment"), _experiments(study, results)]
    answer, judged_claims = svgs.get("answer.svg"), claims(results)
    pictured = ", ".join(study.file.picture) or f"{study.file.metric} of every experiment"
    caption = f"{pictured} over the steps: the mean over seeds, and their range."
    rule, seeds = study.file.rule, ", ".join(map(str, study.seeds))
    words = ["study", "run", study.path.name, *["--quick"] * study.quick]
    if list(study.seeds) != (study.file.quick.seeds if study.quick else study.file.seeds):
        words += ["--seeds", str(len(study.seeds))]
    return [
        records.Heading(study.file.title, 1),
        records.Note(study.file.question, "headline"),
        *(_claims(judged_claims) if judged_claims else [records.Heading("The answer"), experiments[1]]),
        *([records.Picture("answer.svg", caption, caption, (answer,))] if answer is not None else []),
        records.Heading("What was asked, and how"),
        *([records.Note(study.file.background)] if study.file.background else []),
        records.Note(
            f"Every number comes from the run directories of `{shell_command(*words)}`"
            f"{', the quick version of the study' if study.quick else ''}: {counted(len(results), 'experiment')}, "
            f'seed{"s" if len(study.seeds) > 1 else ""} {seeds}. "At the end" is the mean over the last '
            f'{100 * rule.share:g} % of the steps, and "at the start" the mean over the first {100 * rule.start:g} %. '
            f"Levels are interquartile means over seeds, and intervals hold {round(100 * rule.confidence)} % over "
            "seeds. The rules that decide are those of the study's file.",
            "soft",
        ),
        *([records.Note((records.strong("How much this says. "), limits))] if limits else []),
        records.Heading("Curves"),
        explored,
        records.Note("A line is the mean over seeds, and a band their range.", "soft"),
        *criteria(study, results),
        *(experiments if judged_claims else []),
        *(record for result in results for record in _section(study, result, results, svgs)),
        *(
            [records.Heading("What was not tested"), records.Items(untested)]
            if (untested := _untested(study, results))
            else []
        ),
    ]


def _claims(judged_claims: Sequence[Claim]) -> list[records.Record]:
    rows = [
        (
            claim.text,
            tuple(
                piece
                for name, judged in claim.judgements
                for piece in (
                    records.Span(name, href=f"#{name}"),
                    f": {measured(judged)} ({judged.word}) ",
                )
            ),
            records.strong(claim.verdict),
        )
        for claim in judged_claims
    ]
    return [
        records.Heading("The answer"),
        records.Note(
            "What was concluded before, and what these runs say. An experiment supports a claim if all its "
            "measurements do, and refutes the claim if one does."
        ),
        records.Table(("what was concluded before", "what was measured", "verdict"), rows),
    ]


def _experiments(study: Study, results: Sequence[ArmResult]) -> records.Table:
    rows = [
        (
            records.Span(result.arm.name, href=f"#{result.arm.name}"),
            result.arm.experiment.title,
            f"{sum(run.state in DONE for run in result.runs)} of {len(study.seeds)}",
            records.word(result.word),
            _finding(study, result),
        )
        for result in results
    ]
    return records.Table(("experiment", "what", *records.numbers("runs done"), "verdict", "finding"), rows)


def _section(
    study: Study, result: ArmResult, results: Sequence[ArmResult], svgs: Mapping[str, str]
) -> Iterator[records.Record]:
    experiment, file = result.arm.experiment, f"{result.arm.name}.svg"
    base = next((candidate for candidate in results if candidate.arm.name == experiment.base), None)
    against = f", against {experiment.base}" if experiment.base else ""
    yield records.Heading(experiment.name, anchor=experiment.name)
    yield records.Note((records.strong(f"{experiment.title}{against}: "), records.word(result.word), "."))
    if changed := [(key, _value(a), _value(b)) for key, (a, b) in result.arm.changed.items()]:
        yield records.Table(("setting", *records.numbers(experiment.base, experiment.name)), changed)
    reasons = {"Why": experiment.why, "Hypothesis": experiment.hypothesis, "Concluded before": experiment.concluded}
    for name, text in reasons.items():
        if text:
            yield records.Note(f"{name}: {text}")
    if result.judged:
        judgements = []
        for judged in result.judged:
            smallest = judged.change.smallest if judged.change else None
            power = f" So few seeds show a true difference of {markup.number(smallest)} in 4 of 5 studies."
            text = f": {measured(judged)}{power if smallest is not None else ''}"
            judgements.append((records.word(judged.word), text))
        yield records.Items(judgements)
    if file in svgs:  # beside the page: twenty pictures inside would be megabytes
        yield records.Picture(file, f"Curves of {experiment.name}{f' over those of {base.arm.name}' if base else ''}")
    topics = _topics(study, result, base)
    if topics:
        columns = records.numbers(*([experiment.base] if base else []), experiment.name)
        yield records.Table(("measured", "unit", *columns), topics)
    if result.causes:
        yield records.Note("What the doctor says:")
        lines = []
        for cause in result.causes[:MOST_CAUSES]:
            first_step = "" if cause.finding.since_step is None else f" from step {cause.finding.since_step}"
            runs = "" if len(result.runs) == 1 else f" in {cause.seeds} of {len(result.runs)} runs"
            lines.append(f"{cause.finding.severity} {cause.finding.check}{runs}{first_step}: {cause.finding.message}")
        yield records.Items(lines)
    elif topics:
        yield records.Note("The doctor finds no harmful cause.")
    advice = experiment.next or _next_step(result)
    yield records.Note(f"Status: {_status(study, result)}.{f' Next: {advice}' if advice else ''}")


def _limits(study: Study, results: Sequence[ArmResult], changes: Sequence[str]) -> str:
    """Return what a reader must know of how little the runs say; "" where every experiment has its seeds."""
    seeds = [sum(run.state in DONE for run in result.runs) for result in results]
    text = "".join(f"Between its runs {change!s:.500} changed, which was accepted. " for change in changes)
    if study.quick:
        text += "This is the quick version, with fewer steps or problems than the study asks for. "
    single = sum(count < LEAST_SEEDS for count in seeds)
    if single:
        verb = "has" if single == 1 else "have"
        who = "Every experiment has" if single == len(seeds) else f"{single} of {len(seeds)} experiments {verb}"
        text += (
            f"{who} one run at most, which is weak evidence. One run cannot tell an effect from chance, so comparisons "
            'with it are undecided. Where its number is compared with a bound, "supported" and "refuted" mean only '
            "that this run met it or missed it. "
        )
    if LEAST_SEEDS <= max(seeds) < ENOUGH_SEEDS:
        text += f"{max(seeds)} seeds decide only large differences: many comparisons stay undecided."
    return text.strip()


def measured(judged: Judged) -> str:
    """Return an expectation and the numbers that decide the expectation, as two sentences."""
    says = judged.expect.says.rstrip()
    return f"{says}{'' if says.endswith(SENTENCE_ENDS) else '.'} {numbers_of(judged)}"


def numbers_of(judged: Judged) -> str:
    """Return the numbers that decide an expectation, as one sentence."""
    expect = judged.expect
    quantity = f"{judged.metric}, {TAKES[expect.take]}"
    if expect.be in ABSOLUTE:
        if not judged.values:
            return f"{quantity}: not measured."
        met = sum(meets(expect, value) for value in judged.values)
        values = ", ".join(markup.number(value) for value in judged.values)
        return f"{quantity}: {values}; {expect.be} {expect.value:g} in {met} of {counted(len(judged.values), 'seed')}."
    if judged.change is None:
        return f"{quantity}: not measured in both."
    change = judged.change
    text = (
        f"{quantity}: {markup.number(change.second)} against {markup.number(change.first)} of {judged.than}, "
        f"difference {markup.signed(change.change)}"
    )
    if change.low is None or change.high is None:
        return f"{text}; one seed, so there is no interval."
    bounds = markup.interval([change.low, change.high])
    over = f"{change.seeds[1]} pairs of equal" if change.paired else f"{change.seeds[1]} and {change.seeds[0]}"
    margin = f" (a difference below {expect.margin:g} counts as none)" if expect.margin else ""
    return f"{text} {bounds} over {over} seeds{margin}."


def _finding(study: Study, result: ArmResult) -> str:
    if not result.runs:
        return "not run yet"
    if result.judged:  # what decided: of a verdict that is not "supported", the first expectation that is not
        decisive = next((judged for judged in result.judged if judged.word == result.word), result.judged[0])
        return measured(decisive)
    values = values_of(result.runs, study.file.metric, "last", study.file.rule)
    level = seed_mean(values)
    if level is None:
        return f"{study.file.metric} was not measured"
    bounds = interval(values, study.file.rule.confidence)
    bounds_text = f" {markup.interval(list(bounds))}" if bounds else ""
    seeds = f"{len(values)} of {counted(len(study.seeds), 'seed')}"
    return f"{study.file.metric}, at the end: {markup.number(level)}{bounds_text}, {seeds}."


def _topics(study: Study, result: ArmResult, base: ArmResult | None) -> list[Sequence[records.Text] | str]:
    arms, rows = [base, result] if base else [result], []
    for topic, measures in COMPARED.items():
        measured: list[Sequence[records.Text]] = []
        for metric, take in measures:
            levels = [seed_mean(values_of(arm.runs, metric, take, study.file.rule)) for arm in arms]
            if any(level is not None for level in levels):
                description = describe(metric)
                plain = take in ("ratio", "spike", "below_zero", "lowest_z") or description is None
                unit = "" if plain or description is None else description.unit
                measured.append((f"{metric}, {TAKES[take]}", unit, *map(markup.number, levels)))
        rows += [topic, *measured] if measured else []
    return rows


def _status(study: Study, result: ArmResult) -> str:
    if not result.runs:
        return f"not run; {counted(len(study.seeds), 'run')} to make"
    done = [run for run in result.runs if run.state in DONE]
    lengths = sorted({run.steps for run in result.runs})
    steps = " to ".join(map(str, lengths[:: max(1, len(lengths) - 1)]))  # the shortest and the longest
    text = f"{len(done)} of {counted(len(study.seeds), 'run')} done, with {steps} step{'s' * (steps != '1')}"
    for run in result.runs:
        if run.ended:
            text += f"; seed {run.seed} was ended by the rule {run.ended}"
        elif run.state == "failed":
            text += f"; seed {run.seed} failed after {counted(run.steps, 'step')}: {run.error}"
        elif run.state not in DONE:
            text += f"; seed {run.seed} is unfinished, {counted(run.steps, 'step')} so far"
    return text


def _next_step(result: ArmResult) -> str:
    """Return the next step where the file names none: what the verdict itself asks for, or ""."""
    if not result.runs:
        return "Run it."
    if result.word == "undecided":
        compared = [judged for judged in result.judged if judged.than]
        if compared and all(judged.change and judged.change.low is None for judged in compared):
            return "Run more seeds: one seed has no interval."
        return "Run more seeds, or take a margin of what would matter."
    if result.causes and result.causes[0].finding.remedy:
        return result.causes[0].finding.remedy
    return ""


def _untested(study: Study, results: Sequence[ArmResult]) -> list[str]:
    """Return what the study does not answer: what the file says, and what was not run or not measured."""
    missing = len(jobs(study)) - sum(run.state in DONE for result in results for run in result.runs)
    lines = [f"{missing} of {counted(len(jobs(study)), 'run')} not done."] if missing else []
    if len(study.seeds) == 1:
        lines.append(
            "There is one seed: differences have no interval, and all comparisons of experiments are undecided."
        )
    lines += [
        f"{result.arm.name}: {judged.metric} was not measured."
        for result in results
        for judged in result.judged
        if result.runs and not judged.values
    ]
    return [*lines, *study.file.not_tested]


def _value(value: object) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def criteria(study: Study, results: Sequence[ArmResult]) -> list[records.Record]:
    """Return the table of all experiments against all shared bounds; nothing where no bound is shared.

    An experiment is measured against every one of them, whether it names it or not. Where some experiments expect a
    number above a bound and others below it, the direction that more of them expect is taken.
    """
    named = [
        ((expect.metric or study.file.metric, expect.take, expect.value), expect)
        for result in results
        for expect in result.arm.experiment.expect
        if expect.be in ABSOLUTE
    ]
    shared = []
    for bound, count in Counter(bound for bound, _ in named).items():
        expects = [expect for named_bound, expect in named if named_bound == bound]
        (direction, _), *_ = Counter(expect.be for expect in expects).most_common(1)
        if count >= LEAST_ARMS:
            shared.append(next(expect for expect in expects if expect.be == direction))
    if not shared:
        return []
    rows = [
        (
            records.Span(result.arm.name, href=f"#{result.arm.name}"),
            *(_cell(study, result, expect) for expect in shared),
        )
        for result in results
    ]
    heads = [f"{e.says} ({e.metric or study.file.metric}, {e.be} {e.value:g})" for e in shared]
    return [
        records.Heading("All experiments against the same bounds"),
        records.Note(
            "The bounds that several experiments name, and the level of every experiment over its seeds. Bold numbers "
            "meet the bound in every seed."
        ),
        records.Table(("experiment", *records.numbers(*heads)), rows),
    ]


def _cell(study: Study, result: ArmResult, expect: Expect) -> records.Text:
    """Return the level of an experiment over its seeds, and in how many of them the bound is met."""
    runs = [run for run in result.runs if run.state in (*DONE, "failed")]
    values = values_of(runs, expect.metric or study.file.metric, expect.take, study.file.rule)
    level = seed_mean(values)
    if level is None:
        return "not measured" if runs else "no run yet"
    met = sum(meets(expect, value) for value in values)
    word = "met" if met else "missed"
    verdict = word if len(values) == 1 else f"met in {met} of {len(values)}"
    text = f"{markup.number(level)}, {verdict}"
    return records.strong(text) if met == len(values) else text
