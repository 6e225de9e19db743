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
from steadyrl.show.web.folder import Place
from steadyrl.show.web.render import whole_number
from steadyrl.show.web.rollouts import LONGEST, ORDERS, Entry, Rollouts, call_filters, episode, opening, turn_messages
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


def list_view(place: Place, rollouts: Rollouts, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of a step's rollouts shows; without a step, the last one that was recorded."""
    run = RunDir(place.path)
    steps = recorded_steps(run)
    view = {
        **head_view(place),
        "steps": steps,
        "groups": [],
        "total": 0,
        "step": None,
        "next": None,
        "orders": ORDERS,
    }
    filters = {name: query.get(name, "") for name in ("problem", "stop", "tool", "error", "least", "most", "q")}
    order = query.get("order", "worst")
    view["asked"] = {**filters, "order": order if order in ORDERS else "worst"}
    if not steps:
        return view
    near = whole_number(query.get("near"), steps[-1])
    step = whole_number(query.get("step"), min(steps, key=lambda step: abs(step - near)))
    path = rollouts.file(run, step)
    if path is None:
        raise RunError(f"no rollouts of step {step} were recorded; recorded are {_listed(steps)}")
    entries = rollouts.choose(path, view["asked"])
    page = max(1, whole_number(query.get("page"), 1))
    by_problem: dict[str, list[Entry]] = {}
    for entry in entries:
        by_problem.setdefault(entry.problem, []).append(entry)
    shown = list(by_problem.values())[(page - 1) * PER_PAGE : page * PER_PAGE]
    address = {name: value for name, value in {**view["asked"], "step": str(step)}.items() if value}
    at = steps.index(step) if step in steps else len(steps) - 1
    return view | {
        "step": step,
        "earlier": steps[at - 1] if at > 0 else None,
        "later": steps[at + 1] if at + 1 < len(steps) else None,
        "all": len(rollouts.entries(path)),
        "total": len(entries),
        "problems": len({entry.problem for entry in rollouts.entries(path)}),
        "stops": sorted({entry.stop for entry in rollouts.entries(path)} - {""}),
        **call_filters(rollouts.entries(path)),
        "some_unscored": any(entry.unscored for entry in rollouts.entries(path)),
        "groups": [
            {
                **_group(group, rollouts.records(path, group[:MOST_ANSWERS])),
                "only": urlencode({**address, "problem": group[0].problem}),
                "over": urlencode({"problem": group[0].problem}),
            }
            for group in shown
        ],
        "next": urlencode({**address, "page": page + 1}) if page * PER_PAGE < len(by_problem) else None,
        "previous": urlencode({**address, "page": page - 1}) if page > 1 else None,
        "filter": urlencode({name: value for name, value in address.items() if name != "step"}),
    }


def _group(entries: Sequence[Entry], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the list shows of the rollouts of one problem: equal answers once, with what differs marked."""
    several = [_short(entry, record) for entry, record in zip(entries, records, strict=False)]
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for rollout in several:
        key = tuple(rollout[name] for name in ("completion", "reward", "stop", "unscored", "note", "turns", "calls"))
        alike.setdefault((*key, *rollout["parts"], *rollout["failures"]), []).append(rollout)
    pieces = marked([same[0]["completion"] for same in alike.values()])
    return {
        "problem": entries[0].problem,
        "prompt": several[0]["prompt"],
        "mean": _mean(entries),
        "count": len(entries),
        "shown": len(several),
        "rollouts": [
            {**same[0], "numbers": [rollout["number"] for rollout in same], "words": words}
            for same, words in zip(alike.values(), pieces, strict=True)
        ],
    }


def rollout_view(place: Place, rollouts: Rollouts, step: int, number: int, colour: str) -> dict[str, Any]:
    """Return what the page of one rollout shows.

    Raises:
        RunError: There is none of that number.
    """
    run = RunDir(place.path)
    path = rollouts.file(run, step)
    entries = rollouts.entries(path) if path else []
    if path is None or number >= len(entries):
        raise RunError(f"there is no rollout {number} at step {step}; recorded are {_listed(recorded_steps(run))}")
    entry = entries[number]
    (record,) = rollouts.records(path, [entry])
    group = [member for member in entries if member.problem == entry.problem]
    tokens = rollouts.tokens(run, step, number)
    measured = [name for name in COLOURED if tokens and _numbers(tokens, name)]
    chosen = colour if colour in measured else next(iter(measured), "")
    _, explained, parted = COLOURED.get(chosen, ("", "", False))
    outcome = record.get("outcome")
    extra_fields = {name: value for name, value in record.items() if name not in _NAMED}
    return {
        **head_view(place),
        "step": step,
        "rollout": {
            **_short(entry, record),
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
        "next": number + 1 if number + 1 < len(entries) else None,
        "tokens": _coloured(tokens, chosen) if tokens and chosen else None,
        "colour": chosen,
        "colours": [(name, COLOURED[name][0]) for name in measured],
        "explained": explained,
        "parted": parted,
        "levels": LEVELS,
        "problem_query": urlencode({"problem": entry.problem}),
    }


def problem_view(place: Place, rollouts: Rollouts, problem: str) -> dict[str, Any]:
    """Return what the page of one problem shows: its rollouts over the steps, side by side."""
    run = RunDir(place.path)
    columns: list[dict[str, Any]] = []
    prompt = ""
    for step, entries in rollouts.of_problem(run, recorded_steps(run), problem):
        path = rollouts.file(run, step)
        records = rollouts.records(path, entries) if path else []
        rollout_views = [_short(entry, record) for entry, record in zip(entries, records, strict=False)]
        columns.append({"step": step, "mean": _mean(entries), "rollouts": rollout_views})
        prompt = prompt or next((rollout["prompt"] for rollout in rollout_views), "")
    return {**head_view(place), "problem": problem, "prompt": prompt, "columns": columns}


def _listed(steps: Sequence[int]) -> str:
    if not steps:
        return "none"
    return f"{', '.join(map(str, steps[:5]))}{f' ... {steps[-1]}' if len(steps) > 5 else ''}"


def _mean(entries: Sequence[Entry]) -> float | None:
    return finite_mean(entry.reward for entry in entries if entry.reward is not None)


def _short(entry: Entry, record: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: shorten(record.get(name), SHORT) for name in ("completion", "note", "unscored")}
    texts["prompt"] = shorten("\n".join(message["text"] for message in opening(record)), SHORT)
    values = record.get("parts")
    numbers = {str(name): finite_number(value) for name, value in values.items()} if isinstance(values, dict) else {}
    parts = [(name, number) for name, number in numbers.items() if number is not None]
    return {"number": entry.number, "problem": entry.problem, "reward": entry.reward, "stop": entry.stop,
            "tokens": entry.tokens, "parts": parts, **episode(record), **texts}  # fmt: skip


def _text(value: Any) -> str:
    return shorten(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1), LONGEST)


def _numbers(tokens: Mapping[str, Any], name: str) -> list[float | None]:
    """Return the numbers of the tokens under a name; [] where the file holds none that fit."""
    values, texts = tokens.get(name), tokens.get("tokens")
    if not isinstance(values, list) or not isinstance(texts, list) or len(values) != len(texts):
        return []
    numbers = [finite_number(value) for value in values]
    return numbers if any(value is not None for value in numbers) else []


def _coloured(tokens: Mapping[str, Any], chosen: str) -> dict[str, Any]:
    """Return the tokens with the level of their colour, -LEVELS to LEVELS, and the ends of the scale."""
    numbers = {name: _numbers(tokens, name) for name in COLOURED}
    values, parted = numbers[chosen], COLOURED[chosen][2]
    distances = np.array([np.nan if value is None else value for value in values])  # from where the colour is pale
    if chosen == "ratio":
        distances = np.where(distances >= 1.0, distances - 1.0, 1.0 - 1.0 / np.maximum(distances, 1e-6))
    elif chosen == "logprob":
        distances = -distances
    # The few largest would make all others pale.
    scale = float(np.nanquantile(np.abs(distances), 0.95))
    levels = np.clip(np.round(LEVELS * distances / (scale or np.inf)), -LEVELS, LEVELS)
    policy = tokens.get("policy")
    mask = policy if isinstance(policy, list) and len(policy) == len(values) else [True] * len(values)
    shown = []
    for at, text in enumerate(tokens["tokens"]):
        measurements = [
            f"{words} {column[at]:.4g}"
            for name, (words, _, _) in COLOURED.items()
            if (column := numbers[name]) and column[at] is not None
        ]
        shown.append(
            {
                "text": str(text),
                "level": None if np.isnan(levels[at]) else int(levels[at]),
                "told": ", ".join(measurements),
                "policy": bool(mask[at]),
            }
        )
    ends = (1 / (1 + scale) if chosen == "ratio" else -scale, 0.0, 1 + scale if chosen == "ratio" else scale)
    low, high = ends[0] if parted else 0.0, -scale if chosen == "logprob" else ends[2]
    left_out = int(tokens.get("left_out") or 0)
    return {"shown": shown, "left_out": left_out, "low": _end(low, scale), "high": _end(high, scale)}


def _end(value: float, scale: float) -> str:
    """Return an end of the scale with as many digits as tell it from the middle."""
    digits = 3 if scale <= 0.0 else min(12, max(3, 2 - math.floor(math.log10(scale))))
    return f"{value:.{digits}f}"


def marked(answers: Sequence[str]) -> list[list[tuple[str, bool]]]:
    """Return each answer to a problem as pieces, and of each piece whether another answer lacks it."""
    split = [_WORDS.findall(answer) for answer in answers]
    common = split[0] if split else []
    for words in split[1:MOST_COMPARED]:
        common = [common[i] for i in _shared(common, words)]
    return [_pieces(words, set(_shared(words, common))) for words in split]


def _shared(words: Sequence[str], more_words: Sequence[str]) -> list[int]:
    """Return the places of the words that both have in the same order."""
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
