"""Rollouts of another policy, with and without corrections: python bench/off_policy.py toy|base --folder FOLDER.

Trains by GRPO on rollouts that are 0, 1, 4 and 8 steps old, and on those of a sampler in bfloat16, without a
correction and with each. Prints by case the mean reward of the policies of all steps (the toy's exactly, the base
model's from the rollouts that each of them drew), its difference to the same seeds without a correction (mean over
seeds with a 95 % bootstrap interval), the reward of the last eight policies (mean and least), and means over the
steps: the gap between sampler and trainer in nats per token, the effective sample size of the completions' weights,
and the share of tokens that were dropped.

The toy spells the alphabet onwards from the letter that it is given. The base model learns to join more words by AND
in the queries of the search task. Runs that the folder already holds are not made again, so that several processes
may share the work, each with seeds of its own (as in --seeds 3-4), and so that cases can be added one by one
(--corrections off icepop --rollouts "4 old" "8 old").
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import string
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.backends.toy import ToyBackend
from steadyrl.core import config
from steadyrl.core.rundir import RunDir
from steadyrl.core.sections import Section
from steadyrl.core.stats import paired_difference
from steadyrl.core.types import Completion, Sampling
from steadyrl.loop.checkpoint import read_state
from steadyrl.loop.train import Session, Watch, open_session, train

HERE = Path(__file__).stem
CORRECTIONS = ("off", "token", "sequence", "geometric", "icepop", "dppo")
ROLLOUTS = ("fresh", "1 old", "4 old", "8 old", "bf16")
MEASURED = ("sampler_gap", "importance/ess_seq", "correction/masked")


FOLLOWS = dict(zip(string.ascii_lowercase, string.ascii_lowercase[1:] + "a", strict=True))
LENGTH = 8


def spells_on(problem, rollout):
    """Return the share of characters that follow the one before them in the alphabet."""
    text = problem.prompt + rollout.text.strip()
    return sum(FOLLOWS.get(a) == b for a, b in itertools.pairwise(text)) / LENGTH


def joins(problem, rollout):
    """Return how many times AND stands in a query, up to four, as a share of four."""
    return min(rollout.text.split().count("AND"), 4) / 4


class RoundedToy(ToyBackend):
    """The toy with a sampler that reads its logits in bfloat16."""

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend."""
        exact = self.parameters
        bits = exact["logits"].astype(np.float32).view(np.uint32) + np.uint32(0x8000)  # to the nearest, ties upwards
        rounded = (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
        self.parameters = {**exact, "logits": rounded}
        try:
            return super().generate(prompts, sampling, seeds)
        finally:
            self.parameters = exact


class Rounded:
    """A sampler that computes with a copy of the torch policy in bfloat16, head included."""

    class Settings(Section):
        """No settings."""

    @staticmethod
    def build(settings: Settings, model: Any) -> RoundedEngine:
        """Return the engine of a run."""
        return RoundedEngine()


class RoundedEngine:
    """See Rounded."""

    stale = True

    def generate(
        self, policy: Any, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """Sample one completion per prompt."""
        import torch

        from steadyrl.backends.torch.draw.sampler import sample
        from steadyrl.backends.torch.load.fits import through_ours
        from steadyrl.backends.torch.load.model import split_head

        if self.stale:
            self._model, self.stale = copy.deepcopy(policy.model).to(torch.bfloat16), False
        ends, pad = policy.tokenizer.end_ids, policy.tokenizer.pad_id
        return sample(through_ours(self._model, split_head(self._model)), prompts, sampling, seeds, ends, pad)

    def rest(self) -> None:
        """Keep the copy: it takes no room that scoring needs."""


def toy_settings(rollouts: str, folder: Path) -> dict[str, Any]:
    """Return the settings of a run of the toy."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": letter}) + "\n" for letter in string.ascii_lowercase))
    return {
        "run": {"steps": 40},
        "backend": {"name": f"{HERE}:RoundedToy" if rollouts == "bf16" else "toy"},
        "task": {"name": "prompts", "args": {"path": str(prompts)}},
        "rewards": {f"{HERE}:spells_on": 1.0},
        "sampling": {"max_new_tokens": LENGTH},
        "rollout": {"prompts_per_step": 8, "samples_per_prompt": 8},
        "algorithm": {"name": "grpo", "args": {"kl_coef": 0.0, "scale": "batch"}},
        "update": {"learning_rate": 0.1, "warmup_steps": 0, "kl_old_limit": 10.0},
    }


def base_settings(rollouts: str, folder: Path) -> dict[str, Any]:
    """Return the settings of a run of the base model that ships with the package."""
    return {
        "run": {"steps": 24},
        "task": {"name": "search", "args": {"corpus": "stdlib"}},
        "rewards": {f"{HERE}:joins": 1.0},
        "sampling": {"max_new_tokens": 24, "temperature": 0.7},
        "sampler": {"engine": f"{HERE}:Rounded"} if rollouts == "bf16" else {},
        "rollout": {"prompts_per_step": 8, "samples_per_prompt": 4},
        "algorithm": {"name": "grpo", "args": {"kl_coef": 0.01, "scale": "batch"}},
        "update": {"learning_rate": 4e-4, "warmup_steps": 2},
    }


SETTINGS = {"toy": toy_settings, "base": base_settings}


def exact_reward(session: Session) -> float:
    """Return the toy's expected reward over all letters."""
    logits, ids = session.backend.parameters["logits"], session.backend.tokenizer._ids
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    at, found = np.zeros((26, len(p))), 0.0
    at[range(26), [ids[letter] for letter in FOLLOWS]] = 1.0
    for _ in range(LENGTH):
        found += sum(at[:, ids[a]].mean() * p[ids[a], ids[b]] for a, b in FOLLOWS.items())
        at = at @ p
        at[:, session.backend.tokenizer.end_id :] = 0.0
    return float(found) / LENGTH


def measure(model: str, rollouts: str, correction: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train once; return what the table is made of."""
    settings = SETTINGS[model](rollouts, folder)
    settings["run"] |= {"seed": seed, "folder": str(folder), "doctor_every": 0, "token_details_every": 0}
    settings["rollout"]["ahead"] = int(rollouts.split()[0]) if rollouts.endswith("old") else 0
    settings["update"]["correction"] = correction
    session, run = open_session(config.resolve(settings)), RunDir(folder / "run")
    session, rewards = replace(session, heldout=()), list[float]()
    if model == "toy":
        train(session, run, watch=Watch(step=lambda line: rewards.append(exact_reward(session))))
    else:
        train(session, run)
        rewards = drawn_rewards(run, settings["rollout"]["ahead"])
    steps = run.metrics()
    means = {name: float(np.mean([step.get(name) or 0.0 for step in steps])) for name in MEASURED}
    return {"reward": float(np.mean(rewards[-8:])), "mean": float(np.mean(rewards)), "rewards": rewards, **means}


def drawn_rewards(run: RunDir, ahead: int) -> list[float]:
    """Return the mean reward of what every step's policy drew, the rollouts that still wait included."""
    trained = [line["reward/mean"] for line in run.metrics()]
    waiting = [
        float(np.mean([rollout.reward for group in drawn.groups for rollout in group.rollouts]))
        for drawn in read_state(run, len(trained)).in_flight
    ]
    return [*trained, *waiting][ahead:]


def missing(held: Sequence[Mapping[str, Any]], asked: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Return the runs that are not made yet: rollouts, correction, seed."""
    made = {(run["model"], run["rollouts"], run["correction"], run["seed"]) for run in held}
    first, _, last = asked.seeds.partition("-")
    wanted = itertools.product(asked.rollouts, asked.corrections, range(int(first), int(last or first) + 1))
    return [
        one for one in wanted if (asked.model, *one) not in made and (one[0] != "fresh" or one[1] == CORRECTIONS[0])
    ]


def print_table(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print a line per case as Markdown."""
    by_case: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        by_case.setdefault((run["rollouts"], run["correction"]), {})[run["seed"]] = run
    print("| rollouts | correction | runs | mean reward | against off | at the end | least | gap | samples | dropped |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for rollouts, correction in itertools.product(ROLLOUTS, CORRECTIONS):
        by_seed = by_case.get((rollouts, correction), {})
        seeds = sorted(set(by_seed) & set(by_case.get((rollouts, "off"), {})))
        if not seeds:
            continue
        mean, end = (np.array([by_seed[seed][name] for seed in seeds]) for name in ("mean", "reward"))
        plain = np.array([by_case[(rollouts, "off")][seed]["mean"] for seed in seeds])
        against = ""
        if correction != "off" and len(seeds) > 1:
            gain = paired_difference(plain, mean)
            against = f"{gain.difference:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        gap, size, dropped = (float(np.mean([by_seed[seed][name] for seed in seeds])) for name in MEASURED)
        print(
            f"| {rollouts} | {correction} | {len(seeds)} | {mean.mean():.3f} | {against} | {end.mean():.3f} | "
            f"{end.min():.3f} | {gap:.2g} | {size:.2f} | {dropped:.2f} |"
        )


def main() -> None:
    """Make the runs that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=SETTINGS)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--folder", type=Path, default=None, help="what is measured stays here, off_policy_MODEL.jsonl")
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=CORRECTIONS)
    parser.add_argument("--rollouts", nargs="+", choices=ROLLOUTS, default=ROLLOUTS)
    asked = parser.parse_args()
    held = (asked.folder or Path(tempfile.mkdtemp())) / f"off_policy_{asked.model}.jsonl"
    held.touch()

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in held.read_text(encoding="utf-8").splitlines()]

    for rollouts, correction, seed in missing(read(), asked):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(asked.model, rollouts, correction, seed, Path(folder))
        case = {"model": asked.model, "rollouts": rollouts, "correction": correction, "seed": seed}
        with held.open("a", encoding="utf-8") as file:
            file.write(json.dumps(case | found) + "\n")
    print_table(read())


if __name__ == "__main__":
    main()
