"""What the report of a run lists: its first lines, settings, epochs, the autopilot's actions, and answers.

The first lines say what was trained, on what, how, for how long, at what cost, and what came of it. The forms of
answers and answers drawn at random stand beside their means: a mean hides an answer that is always the same, and chosen
examples hide what is usual.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.config import Config, dump
from steadyrl.core.counting.count import duration
from steadyrl.core.metrics import finite_number, series
from steadyrl.core.types import DECODINGS
from steadyrl.core.words import counted
from steadyrl.doctor.examine import Diagnosis
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.lab.compare.verdict import with_doubts
from steadyrl.loop.tasks.data_line import data_line
from steadyrl.show.page import markup, records
from steadyrl.show.page.records import Heading, Note, Record, Sample, Span, Table, Text, numbers, strong
from steadyrl.show.report.evidence import Evidence
from steadyrl.show.report.figures import contradictions
from steadyrl.show.review.epochs import EPOCHS

Line = Mapping[str, Any]
NOT_SET = "not set"
PLUGIN_SETTINGS = tuple(f"{section}.args." for section in ("task", "algorithm", "curriculum", "backend", "sampler"))
SAMPLES = 10  # problems whose answers are shown
FORMS = 8  # forms shown
# Answers have forms to speak of if this share of them has one of the forms shown. Free text has none.
_COVERED = 0.5
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD = re.compile(r"\w+")
_COLUMNS = tuple((when, decoding) for when in ("before", "after") for decoding in DECODINGS)
MILLION, HOUR_S, GIB = 1e6, 3600.0, 2**30


def describe_action(line: Line) -> str:
    """Return what was done and why, one sentence."""
    return f"{_action_text(line)} ({line.get('why', 'no reason recorded')})"


def actions_view(lines: Sequence[Line]) -> list[Record]:
    """Return what the report shows of the autopilot's actions; nothing without any."""
    rows = [
        (
            f"{line.get('step', '')}",
            _action_text(line),
            f"{line.get('why', '')}",
            "; ".join(str(text) for text in line.get("evidence") or ()),
        )
        for line in lines
    ]
    table = Table((*numbers("step"), "what", "why", "evidence"), rows)
    return [Heading("What the autopilot did"), table] if rows else []


def _action_text(line: Line) -> str:
    kind, knob = line.get("kind"), str(line.get("knob")).replace("rate_multiplier", "rate multiplier")
    before, after = _number(line.get("before")), _number(line.get("after"))
    if kind == "kept":
        return f"{knob} stays at {after}"
    text = f"{knob} {before} → {after}"
    if kind == "undo":
        text = f"undone: {text}"
    if "back_to" in line:
        text = f"back to step {line['back_to']}; {text}"
    return text if line.get("done") else f"advice: {text}"


def _number(value: Any) -> str:
    number = finite_number(value)
    return "unknown" if number is None else f"{number:.3g}"


def settings_rows(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults, and in full those that a plug-in defines for itself."""
    # Only the plug-ins know their defaults, and a report does not load them.
    used, defaults = _flat(settings), _flat(dump(Config()))
    plugin_keys = {key for key in used if key.startswith(PLUGIN_SETTINGS)}
    changed = [key for key in {**used, **defaults} if key not in plugin_keys and used.get(key) != defaults.get(key)]
    return {
        "changed": [(key, used.get(key, NOT_SET), defaults.get(key, NOT_SET)) for key in changed] if used else [],
        "own": [(key, used[key]) for key in used if key in plugin_keys],
        "recorded": bool(used),
    }


def settings_view(settings: Mapping[str, Any]) -> list[Record]:
    """Return what every page shows of the settings of a run; see ``settings_rows``."""
    rows = settings_rows(settings)
    changed, plugins = (
        [tuple(Span(text, "code") for text in row) for row in rows[kind]] for kind in ("changed", "own")
    )
    if not rows["recorded"]:
        return [Note("The run recorded no settings.")]
    view: list[Record] = [Note("Nothing differs from the defaults.")]
    if changed:
        differ = Note("These settings differ from the defaults:", "soft")
        view = [differ, Table(("setting", "this run", "default"), changed)]
    if plugins:
        owners = "task, algorithm, curriculum, backend and sampler"
        view.append(Note(f"These are all settings that {owners} have of their own:", "soft"))
        view.append(Table(("setting", "this run"), plugins))
    return view


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return values as JSON by dotted keys."""
    flat = flat_settings(settings)
    return {name: json.dumps(value, ensure_ascii=False) for name, value in flat.items() if value != {}}


def epochs_view(table: Mapping[str, Any] | None) -> list[Record]:
    """Return what pages and terminal show of an ``epoch_table``: rewards and losses, no empty columns, and trends."""
    if table is None:
        return []
    tables: list[Record] = []
    status_rows = [
        {**row, "status": ": ".join(filter(None, (row["status"], ", ".join(row["findings"]))))} for row in table["rows"]
    ]
    for headings, last in ((EPOCHS["of_rewards"], ()), (EPOCHS["of_losses"], ("status",))):
        columns = {key: name for key, name in headings.items() if any(row[key] is not None for row in table["rows"])}
        rows = [(row["name"], *(_cell(key, row[key]) for key in (*columns, *last))) for row in status_rows]
        tables.append(Table((*numbers("epoch", *columns.values()), *last), rows))
    named = {**EPOCHS["of_rewards"], **EPOCHS["of_losses"]}
    trends = [
        f"{named[key]} {markup.signed(trend[0])} {markup.interval(trend[1:])}"
        for key, trend in table["trends"].items()
        if trend is not None
    ]
    change = Note(f"Change per epoch, with its 95 % interval: {'; '.join(trends)}.", "soft")
    return [*tables, *([change] if trends else [])]


def _cell(key: str, value: Any) -> str:
    if key == "status":
        return str(value)
    if key in ("change", "loss_change") and value is not None:
        return f"{markup.signed(value[0])} {markup.interval(value[1:])}"
    return f"{value / 60:.1f}" if key == "seconds" and value is not None else markup.number(value)


def form(text: str) -> str:
    """Return a text with a letter for each different word: ``Read AND (read OR file)`` is ``a AND (a OR b)``.

    Words in capitals, such as operators, and punctuation stay.
    """
    names: dict[str, str] = {}

    def letter(match: re.Match[str]) -> str:
        word = match[0]
        if len(word) > 1 and word.isalpha() and word.isupper():
            return word
        return names.setdefault(word.lower(), _LETTERS[min(len(names), len(_LETTERS) - 1)])

    return " ".join(_WORD.sub(letter, text).split()) or "(empty)"


def forms_view(evidence: Evidence) -> list[Record]:
    """Return what the report shows of the forms of answers; nothing if the answers have no form in common."""
    shares = {}
    for when, decoding in _COLUMNS:
        answers = (evidence.before if when == "before" else evidence.after).get(decoding)
        if answers:
            counts = Counter(form(answer.text) for answer in answers.values())
            shares[f"{when}, {decoding}"] = {name: count / counts.total() for name, count in counts.items()}
    top_shares: dict[str, float] = {}  # of each form where it is most frequent
    for form_shares in shares.values():
        top_shares |= {name: max(share, top_shares.get(name, 0.0)) for name, share in form_shares.items()}
    top_forms = sorted(top_shares, key=lambda name: (-top_shares[name], name))[:FORMS]
    columns = [[form_shares.get(name, 0.0) for name in top_forms] for form_shares in shares.values()]
    if max(map(sum, columns), default=0.0) < _COVERED:
        return []
    rows: list[Sequence[Text]] = [
        (Span(markup.shorten(name), "code"), *map(markup.number, row))
        for name, row in zip(top_forms, zip(*columns, strict=True), strict=True)
    ]
    return [
        Heading("Forms of the answers"),
        Note("Share of the answers of each form, each different word as a letter.", "soft"),
        Table(("form", *numbers(*shares)), rows),
    ]


def samples_view(evidence: Evidence, metric: str) -> list[Record]:
    """Return the answers to problems drawn at random; a run with the same problems shows the same ones."""
    sides = {"before": evidence.before.get(evidence.deploy), "after": evidence.after.get(evidence.deploy)}
    problems = list(sides["before"])
    sampled = np.random.default_rng(0).permutation(len(problems))[:SAMPLES]
    samples = []
    for problem in (problems[i] for i in sampled):
        replies = []
        for when, answer in ((when, answers[problem]) for when, answers in sides.items() if problem in answers):
            ends = ", cut at the token limit" if answer.truncated else ""
            ends += f", unscored: {answer.unscored}" if answer.unscored else ""
            label = (f"{when} training, {metric} ", strong(markup.number(answer.metric)), ends)
            replies.append(records.Answer(label, markup.shorten(answer.text), markup.shorten(answer.note)))
        samples.append(Sample(problem, markup.shorten(evidence.before.prompts[problem]), replies))
    count = Note(f"{counted(len(samples), 'held-out problem')} drawn at random.", "soft")
    return [Heading("Sample answers"), *([count, *samples] if samples else [Note("No answers were recorded.")])]


def overview(evidence: Evidence, summary: Mapping[str, Any], diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return the lines of the block, each with its name; what the run did not record is left out."""
    info, settings, seconds = evidence.info, evidence.settings, elapsed(evidence)
    began = f"began {moment(info.get('started'))}" if moment(info.get("started")) else ""
    data = info.get("data") or {}
    sourced = {
        split: {**counts, "source": _model_name(str(counts["source"]))}
        for split, counts in data.items()
        if isinstance(counts, Mapping) and counts.get("source")
    }
    later = [
        f"other data from step {entry.get('step')} on, accepted {moment(entry.get('time'))}"
        for entry in info.get("accepted_data") or ()
    ]
    planned, done = finite_number((evidence.settings.get("run") or {}).get("steps")), len(evidence.metrics)
    planned_text = f" of {planned:.0f}" if planned is not None and planned != done else ""
    sampled = series(evidence.metrics, "tokens/sampled")
    tokens = f"; {np.nansum(sampled):,.0f} tokens sampled" if np.isfinite(sampled).any() else ""
    lines = {
        "verdict": _verdict(summary, diagnosis),
        "model": _model(info, settings),
        "task": str(info.get("task") or ""),
        "data": "; ".join(filter(None, [data_line({**data, **sourced}), *later])),
        "algorithm": _algorithm(info, settings),
        "steps": f"{done}{planned_text}{tokens}",
        "time": ", ".join(filter(None, ["" if seconds is None else duration(seconds), began])),
        "cost": _cost(evidence),
        "memory": memory(info),
    }
    return [(name, text) for name, text in lines.items() if text]


def moment(seconds: Any) -> str:
    """Return seconds since 1970 as a date, "" for anything else."""
    number = finite_number(seconds)
    try:
        return "" if number is None else datetime.fromtimestamp(number, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def _verdict(summary: Mapping[str, Any], diagnosis: Diagnosis) -> str:
    held_out = with_doubts(f"held-out answers: {summary['verdict'] or 'not compared'}", contradictions(summary))
    first = next((finding for finding in diagnosis.findings if finding.harms), None)
    doctor = diagnosis.verdict + (f" ({first.check}: {first.message})" if first else "")
    if diagnosis.judgement:
        doctor = diagnosis.judgement.sentence
    return f"{held_out}; the doctor: {doctor}"


def _model(info: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    name, policy = _model_name(str(info.get("model") or "")), info.get("policy") or {}
    total, trained = (finite_number(policy.get(key)) for key in ("parameters", "trained"))
    if total is None:
        return name
    rank = (settings.get("model") or {}).get("lora_rank") or 0
    way = f"a LoRA adapter of rank {rank} trained ({_count(trained)})" if rank and trained else "all trained"
    return f"{name}, {_count(total)} parameters, {way}"


def _model_name(path: str) -> str:
    # A folder means nothing to a reader elsewhere.
    return Path(path).name if path.startswith(("/", "~")) else path


def _count(parameters: float) -> str:
    return f"{parameters / MILLION:,.3g} million" if parameters >= MILLION else f"{parameters:,.0f}"


def _algorithm(info: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    rollout, update = settings.get("rollout") or {}, settings.get("update") or {}
    prompts, samples = (finite_number(rollout.get(key)) for key in ("prompts_per_step", "samples_per_prompt"))
    text = str(info.get("algorithm") or "")
    if text and prompts and samples:
        text += f", {prompts:g} prompts a step with {samples:g} answer{'' if samples == 1 else 's'} each"
    rate = finite_number(update.get("learning_rate"))
    return f"{text}, learning rate {rate:g}" if text and rate is not None else text


def elapsed(evidence: Evidence) -> float | None:
    """Return the seconds that a run took; of a run that was resumed, those of its steps."""
    if not evidence.info.get("attempt"):  # what a resumed run recorded is of its last attempt
        started, ended, measured = (finite_number(evidence.info.get(key)) for key in ("started", "ended", "elapsed_s"))
        if measured is not None:
            return measured
        if started is not None and ended is not None:
            return max(0.0, ended - started)
    steps = series(evidence.metrics, "time/step")
    return float(np.nansum(steps)) if np.isfinite(steps).any() else None


def _cost(evidence: Evidence) -> str:
    """Return the hours of processors or of the GPU, and what the judge's tokens cost where they have a price."""
    policy = evidence.info.get("policy") or {}
    device, ranks = str(policy.get("device") or "cpu"), finite_number(policy.get("ranks")) or 1
    on_gpu = not device.startswith("cpu")
    # The seconds of processors were measured: a run may wait for others, or leave threads idle.
    seconds = elapsed(evidence) if on_gpu else finite_number(evidence.info.get("processor_s"))
    costs = []
    if seconds:
        hours = markup.number(seconds / HOUR_S * ranks)
        costs.append(f"{hours} {'GPU' if on_gpu else 'processor'} hours ({device})")
    judge = series(evidence.metrics, "judge/cost")
    if np.isfinite(judge).any():
        spent = markup.number(float(np.nansum(judge)))
        costs.append(f"{spent} for the judge's tokens, in the currency of rewards.judge.price_in")
    return "; ".join(costs)


def memory(info: Mapping[str, Any]) -> str:
    """Return the most memory that the process of a run used, "" where run.json does not say."""
    recorded = info.get("memory")
    if not isinstance(recorded, Mapping):
        return ""
    peak, total = (finite_number(recorded.get(name)) for name in ("peak", "total"))
    if not peak or not total:
        return ""
    return f"{peak / GIB:.2f} of {total / GIB:.1f} GiB at most ({markup.clean(str(recorded.get('place')))})"
