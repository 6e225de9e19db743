"""The pages of rollouts: a list with filters, one rollout with its tokens, and one problem over the steps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any
from urllib.parse import urlencode

import numpy as np

from steadyrl.core.errors import RunError
from steadyrl.core.metrics import finite_mean, finite_number
from steadyrl.core.rundir import RunDir
from steadyrl.show.page.markup import shorten
from steadyrl.show.web.folder import RunRef
from steadyrl.show.web.render import whole_number
from steadyrl.show.web.rollouts import (
    LONGEST,
    ORDERS,
    RolloutRow,
    Rollouts,
    call_filters,
    episode,
    opening,
    turn_messages,
)
from steadyrl.show.web.run_page import head_view, recorded_steps

PER_PAGE, MOST_ANSWERS = 20, 32  # problems, and rollouts of each
SHORT = 600  # characters of a text in a list
_NAMED = frozenset(
    "problem prompt messages completion reward parts unscored note stop_reason tokens turns seen outcome calls "
    "turn_rewards".split()
)
LEVELS = 5  # of a colour, on each side of the middle
# What colours tokens: words, what they mean, and whether the colours part at 0 (or at 1 for a ratio).
COLOURED = {
    "logprob": ("log-prob", "how likely the policy found the token; darker is less likely", False),
    "entropy": ("entropy", "how open the choice was; darker is more open, in nats", False),
    "ratio": ("ratio", "probability after the step / before it; blue rose, orange fell", True),
    "advantage": ("advantage", "what the update used; blue is better than expected, orange worse", True),
    "kl_ref_exact": ("KL to reference", "exact KL to the reference at the token, in nats; darker is more", False),
    "kl_ref_k1": ("log-prob less reference", "log p - log ref; blue is likelier than for the reference", True),
}
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
MOST_COMPARED = 12  # different answers of a problem; more share hardly a word


def list_view(ref: RunRef, rollouts: Rollouts, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of a step's rollouts shows; without a step, the last one that was recorded."""
    run = RunDir(ref.path)
    steps = recorded_steps(run)
    view = {
        **head_view(ref),
        "steps": steps,
        "groups": [],
        "total": 0,
        "step": None,
        "next": None,
        "orders": ORDERS,
    }
    filters = {name: query.get(name, "") for name in ("problem", "stop", "tool", "error", "least", "most", "q")}
    order = query.get("order", "worst")
    view["selection"] = {**filters, "order": order if order in ORDERS else "worst"}
    if not steps:
        return view
    target_step = whole_number(query.get("near"), steps[-1])
    step = whole_number(query.get("step"), min(steps, key=lambda step: abs(step - target_step)))
    path = rollouts.file(run, step)
    if path is None:
        raise RunError(f"no rollouts of step {step} were recorded; recorded are {_steps_text(steps)}")
    all_rows, rows = rollouts.rows(path), rollouts.choose(path, view["selection"])
    page = max(1, whole_number(query.get("page"), 1))
    by_problem: dict[str, list[RolloutRow]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, []).append(row)
    page_groups = list(by_problem.values())[(page - 1) * PER_PAGE : page * PER_PAGE]
    address = {name: value for name, value in {**view["selection"], "step": str(step)}.items() if value}
    index = steps.index(step) if step in steps else len(steps) - 1
    return view | {
        "step": step,
        "earlier": steps[index - 1] if index > 0 else None,
        "later": steps[index + 1] if index + 1 < len(steps) else None,
        "all": len(all_rows),
        "total": len(rows),
        "problems": len({row.problem for row in all_rows}),
        "stops": sorted({row.stop for row in all_rows} - {""}),
        **call_filters(all_rows),
        "some_unscored": any(row.unscored for row in all_rows),
        "groups": [
            {
                **_problem_group(group, rollouts.records(path, group[:MOST_ANSWERS])),
                "only": urlencode({**address, "problem": group[0].problem}),
                "over": urlencode({"problem": group[0].problem}),
            }
            for group in page_groups
        ],
        "next": urlencode({**address, "page": page + 1}) if page * PER_PAGE < len(by_problem) else None,
        "previous": urlencode({**address, "page": page - 1}) if page > 1 else None,
        "filter": urlencode({name: value for name, value in address.items() if name != "step"}),
    }


def _problem_group(rows: Sequence[RolloutRow], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the list shows of the rollouts of one problem: equal answers once, with what differs marked."""
    answers = [_rollout_summary(row, record) for row, record in zip(rows, records, strict=False)]
    by_content: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for rollout in answers:
        key = tuple(rollout[name] for name in ("completion", "reward", "stop", "unscored", "note", "turns", "calls"))
        by_content.setdefault((*key, *rollout["parts"], *rollout["failures"]), []).append(rollout)
    pieces = with_differences([duplicates[0]["completion"] for duplicates in by_content.values()])
    return {
        "problem": rows[0].problem,
        "prompt": answers[0]["prompt"],
        "mean": _mean(rows),
        "count": len(rows),
        "shown": len(answers),
        "rollouts": [
            {**duplicates[0], "numbers": [rollout["number"] for rollout in duplicates], "words": words}
            for duplicates, words in zip(by_content.values(), pieces, strict=True)
        ],
    }


def rollout_view(ref: RunRef, rollouts: Rollouts, step: int, number: int, colour: str) -> dict[str, Any]:
    """Return what the page of one rollout shows.

    Raises:
        RunError: There is none of that number.
    """
    run = RunDir(ref.path)
    path = rollouts.file(run, step)
    rows = rollouts.rows(path) if path else []
    if path is None or number >= len(rows):
        raise RunError(f"there is no rollout {number} at step {step}; recorded are {_steps_text(recorded_steps(run))}")
    row = rows[number]
    (record,) = rollouts.records(path, [row])
    group = [member for member in rows if member.problem == row.problem]
    tokens = rollouts.tokens(run, step, number)
    measured = [name for name in COLOURED if tokens and _numbers(tokens, name)]
    measurement = colour if colour in measured else next(iter(measured), "")
    _, explained, diverging = COLOURED.get(measurement, ("", "", False))
    outcome = record.get("outcome")
    extra_fields = {name: value for name, value in record.items() if name not in _NAMED}
    return {
        **head_view(ref),
        "step": step,
        "rollout": {
            **_rollout_summary(row, record),
            **{name: shorten(record.get(name), LONGEST) for name in ("completion", "note", "unscored")},
            "opening": opening(record),
            "talk": turn_messages(record),
            "cut_short": isinstance(observations := record.get("seen"), list)
            and len(observations) > episode(record)["turns"] > 0,
            "outcome": [(str(name), _text(value)) for name, value in outcome.items()]
            if isinstance(outcome, dict)
            else [],
            "others": [(str(name), _text(value)) for name, value in extra_fields.items()],
        },
        "group": [{"number": member.number, "reward": member.reward} for member in group],
        "mean": _mean(group),
        "previous": number - 1 if number else None,
        "next": number + 1 if number + 1 < len(rows) else None,
        "tokens": _coloured(tokens, measurement) if tokens and measurement else None,
        "colour": measurement,
        "colours": [(name, COLOURED[name][0]) for name in measured],
        "explained": explained,
        "diverging": diverging,
        "levels": LEVELS,
        "problem_query": urlencode({"problem": row.problem}),
    }


def problem_view(ref: RunRef, rollouts: Rollouts, problem: str) -> dict[str, Any]:
    """Return what the page of one problem shows: its rollouts over the steps, side by side."""
    run = RunDir(ref.path)
    columns: list[dict[str, Any]] = []
    prompt = ""
    for step, rows in rollouts.of_problem(run, recorded_steps(run), problem):
        path = rollouts.file(run, step)
        records = rollouts.records(path, rows) if path else []
        rollout_views = [_rollout_summary(row, record) for row, record in zip(rows, records, strict=False)]
        columns.append({"step": step, "mean": _mean(rows), "rollouts": rollout_views})
        prompt = prompt or next((rollout["prompt"] for rollout in rollout_views), "")
    return {**head_view(ref), "problem": problem, "prompt": prompt, "columns": columns}


def _steps_text(steps: Sequence[int]) -> str:
    if not steps:
        return "none"
    return f"{', '.join(map(str, steps[:5]))}{f' ... {steps[-1]}' if len(steps) > 5 else ''}"


def _mean(rows: Sequence[RolloutRow]) -> float | None:
    return finite_mean(row.reward for row in rows if row.reward is not None)


def _rollout_summary(row: RolloutRow, record: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: shorten(record.get(name), SHORT) for name in ("completion", "note", "unscored")}
    texts["prompt"] = shorten("\n".join(message["text"] for message in opening(record)), SHORT)
    values = record.get("parts")
    numbers = {str(name): finite_number(value) for name, value in values.items()} if isinstance(values, dict) else {}
    rewards = [(name, number) for name, number in numbers.items() if number is not None]
    return {"number": row.number, "problem": row.problem, "reward": row.reward, "stop": row.stop,
            "tokens": row.tokens, "parts": rewards, **episode(record), **texts}  # fmt: skip


def _text(value: Any) -> str:
    return shorten(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1), LONGEST)


def _numbers(tokens: Mapping[str, Any], name: str) -> list[float | None]:
    """Return the numbers of the tokens under a name; [] where the file holds none that fit."""
    values, texts = tokens.get(name), tokens.get("tokens")
    if not isinstance(values, list) or not isinstance(texts, list) or len(values) != len(texts):
        return []
    numbers = [finite_number(value) for value in values]
    return numbers if any(value is not None for value in numbers) else []


def _coloured(tokens: Mapping[str, Any], measurement: str) -> dict[str, Any]:
    """Return the tokens with the level of their colour, -LEVELS to LEVELS, and the ends of the scale."""
    numbers = {name: _numbers(tokens, name) for name in COLOURED}
    values, diverging = numbers[measurement], COLOURED[measurement][2]
    distances = np.array([np.nan if value is None else value for value in values])  # [T] from where the colour is pale
    if measurement == "ratio":
        # Below 1 by the inverse, so that half and double are equally far from 1; a ratio of 0 has none.
        distances = np.where(distances >= 1.0, distances - 1.0, 1.0 - 1.0 / np.maximum(distances, 1e-6))
    elif measurement == "logprob":
        distances = -distances
    # The few largest would make all others pale.
    scale = float(np.nanquantile(np.abs(distances), 0.95))
    levels = np.clip(np.round(LEVELS * distances / (scale or np.inf)), -LEVELS, LEVELS)
    policy = tokens.get("policy")
    mask = policy if isinstance(policy, list) and len(policy) == len(values) else [True] * len(values)
    spans = []
    for i, text in enumerate(tokens["tokens"]):
        measurements = [
            f"{words} {column[i]:.4g}"
            for name, (words, _, _) in COLOURED.items()
            if (column := numbers[name]) and column[i] is not None
        ]
        spans.append(
            {
                "text": str(text),
                "level": None if np.isnan(levels[i]) else int(levels[i]),
                "title": ", ".join(measurements),
                "policy": bool(mask[i]),
            }
        )
    low, high = (1 / (1 + scale), 1 + scale) if measurement == "ratio" else (-scale, scale)
    low, high = low if diverging else 0.0, -scale if measurement == "logprob" else high
    left_out = int(tokens.get("left_out") or 0)
    return {"spans": spans, "left_out": left_out, "low": _scale_end(low, scale), "high": _scale_end(high, scale)}


def _scale_end(value: float, scale: float) -> str:
    """Return an end of the scale with as many digits as tell it from the middle."""
    digits = 3 if scale <= 0.0 else min(12, max(3, 2 - math.floor(math.log10(scale))))
    return f"{value:.{digits}f}"


def with_differences(answers: Sequence[str]) -> list[list[tuple[str, bool]]]:
    """Return each answer to a problem as pieces, and of each piece whether another answer lacks it."""
    split = [_WORDS.findall(answer) for answer in answers]
    common = split[0] if split else []
    for words in split[1:MOST_COMPARED]:
        common = [common[i] for i in _common_indices(common, words)]
    return [_pieces(words, set(_common_indices(words, common))) for words in split]


def _common_indices(words: Sequence[str], more_words: Sequence[str]) -> list[int]:
    blocks = SequenceMatcher(None, words, more_words, autojunk=False).get_matching_blocks()
    return [block.a + i for block in blocks for i in range(block.size)]


def _pieces(words: Sequence[str], shared: set[int]) -> list[tuple[str, bool]]:
    """Return neighbouring words of one kind as one piece; white space alone is never marked."""
    pieces: list[tuple[str, bool]] = []
    for i, word in enumerate(words):
        differs = i not in shared and (not word.isspace() or bool(pieces and pieces[-1][1]))
        if pieces and pieces[-1][1] == differs:
            pieces[-1] = (pieces[-1][0] + word, differs)
        else:
            pieces.append((word, differs))
    return pieces
