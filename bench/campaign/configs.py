"""Configs of random types, sizes, letters and depths: each is refused in one line within a second, or resolves."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from bench.campaign.trial import STRANGE, Failure, changed_value, refused_or_done
from steadyrl.core.config import Config, dump, resolve
from steadyrl.loop.train import open_session

SECOND = 1.0
OPENED_S = 20.0  # of processor time: a generated corpus may be large, and the toy backend's tables too
BASE = {
    "task": {"name": "search", "args": {"corpus": "generated"}},
    "rewards": {"retrieval": 1.0},
    "backend": {"name": "toy"},
}
NAMES = {
    "task": ("search", "code", "prompts", "browse", "os:getcwd", "json:JSONDecoder", "a:b", "os", ":", "x" * 500),
    "algorithm": ("ppo", "grpo", "rloo", "reinforce", "rlaif", "raft", "rwr", "sft", "os:getcwd", "json", "ü", ""),
    "curriculum": ("uniform", "learnability", "plr", "accel", "bandit", "os:getcwd", "json:loads", "\0"),
    "backend": ("toy", "os:getcwd", "json:loads", "math:pi", "toy:", "steadyrl.backends.toy:np"),
}  # fmt: skip
JUDGE = {"model": "m", "base_url": "http://127.0.0.1:1/v1", "request": {"max_tokens": 5}, "cache": ""}
DEFAULTS = dump(Config())


def attack(rng: random.Random, folder: Path) -> Failure:
    """Resolve one config; if it is accepted, what it resolves to resolves to itself and its session opens."""
    data, overrides = _config(rng, folder), _overrides(rng)
    found: list[Config] = []
    failure = refused_or_done(lambda: found.append(resolve(data, overrides)), SECOND)
    if not failure and found:
        saved = json.loads(json.dumps(dump(found[0])))
        failure = refused_or_done(lambda: found.append(resolve(saved)), SECOND)
        if not failure and found[-1] != found[0]:
            failure = "what it resolves to is not what it was"
        if not failure and found[0].backend.name != "torch" and found[0].task.name in ("search", "os:getcwd"):
            failure = refused_or_done(lambda: open_session(found[0]), OPENED_S)
    if not failure and any(folder.iterdir()):
        failure = "a run directory was left behind"
    return f"{failure} | {json.dumps(data)[:500]} {overrides!r:.300}" if failure else ""


def _config(rng: random.Random, folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = {**json.loads(json.dumps(BASE)), "run": {"folder": str(folder / "runs")}}
    if rng.random() < 0.2:
        data["rewards"]["judge"] = dict(JUDGE)
    for kind, names in NAMES.items():
        if rng.random() < 0.15:
            data[kind] = {**data.get(kind, {}), "name": rng.choice(names)}
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        section = rng.choice([*DEFAULTS, "judge", "x", ""])
        keys = list(DEFAULTS[section]) if isinstance(DEFAULTS.get(section), dict) else []
        key = rng.choice([*keys, "args", "nothing"])
        if isinstance(inside := data.setdefault(section, {}), dict):
            inside[key] = rng.choice(STRANGE)
    changed = changed_value(data, rng) if rng.random() < 0.3 else data
    return changed if isinstance(changed, dict) else data


def _overrides(rng: random.Random) -> list[str]:
    found = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        section = rng.choice([*DEFAULTS, "rewards.judge", "task.args", "algorithm.args", "curriculum.args"])
        keys = list(DEFAULTS[section]) if isinstance(DEFAULTS.get(section), dict) else ["corpus", "clip_high", "x"]
        text = rng.choice(
            (*(repr(value)[:6000] for value in STRANGE), "[" * 3000, "{a=" * 400, "'" * 3, "nan", "1_000")
        )
        found.append(f"{section}.{rng.choice([*keys, '.', 'x.y'])}{rng.choice(('=', '=', '=', '', '=='))}{text}")
    return found
