"""Where the KL over the kept tokens hides a collapse, and where not: python bench/truncated_kl.py [toy] [base].

Short runs of GRPO with truncated sampling, some of which collapse to one letter or one word. Prints for each the KL to
the reference over its whole vocabulary and over the kept tokens at some steps, and what the doctor says. A run
of the base model takes about 20 s of a core, all of the toy together about 15 s.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

REWARDS = """
def letter(problem, rollout):
    return rollout.text.count("a") / max(1, len(rollout.text.strip()))


def half(problem, rollout):
    return sum(letter < "v" for letter in rollout.text.strip()) / max(1, len(rollout.text.strip()))


def one_word(problem, rollout):
    text = rollout.text.lower()
    return 0.5 * ("list" in text) + 0.5 * (text.strip() == "list") + 0.1 / (1 + len(text))
"""
OWN = "paid:"
TOY = {
    "toy, one letter, top_p 0.9": ("letter", "sampling.top_p=0.9"),
    "toy, one letter, top_p 0.9, rate 0.3": ("letter", "sampling.top_p=0.9", "update.learning_rate=0.3"),
    "toy, one letter, top_p 0.99, rate 0.3": ("letter", "sampling.top_p=0.99", "update.learning_rate=0.3"),
    "toy, one letter, top_k 5, rate 0.3": ("letter", "sampling.top_k=5", "update.learning_rate=0.3"),
    "toy, one letter, no truncation, rate 0.3": ("letter", "update.learning_rate=0.3"),
    "toy, half of the letters, top_p 0.9": ("half", "sampling.top_p=0.9"),
    "toy, half of the letters, top_p 0.9, penalty": ("half", "sampling.top_p=0.9", "algorithm.args.kl_coef=0.1"),
}
BASE = {
    "base, retrieval, top_p 0.9, rate 3e-4": ("retrieval", "sampling.top_p=0.9", "update.learning_rate=3e-4"),
    "base, one word, top_p 0.9, rate 1e-3": ("one_word", "sampling.top_p=0.9", "update.learning_rate=1e-3"),
}


def main() -> None:
    """Run what is named, and print a line of each."""
    logging.disable(logging.WARNING)
    wanted = sys.argv[1:] or ["toy", "base"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "paid.py").write_text(REWARDS)
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": letter * 3}) + "\n" for letter in "abcdefghijklmnopqrst"))
        sys.path.insert(0, folder)
        for name, (reward, *overrides) in {**TOY, **BASE}.items():
            if name.split(",")[0] in wanted:
                print(f"{name}: {line(settings(name, reward, folder), overrides, Path(folder) / name)}", flush=True)


def settings(name: str, reward: str, folder: str) -> dict[str, Any]:
    """Return the settings of a run, without the overrides."""
    toy = name.startswith("toy")
    task = {"name": "prompts", "args": {"path": f"{folder}/prompts.jsonl"}}
    return {
        "run": {"steps": 40 if toy else 24, "checkpoint_every": 1000, "folder": folder},
        "backend": {"name": "toy"} if toy else {"name": "torch", "device": "cpu", "threads": 1},
        "task": task if toy else {"name": "search", "args": {"corpus": "generated"}},
        "rewards": {reward if reward == "retrieval" else OWN + reward: 1.0},
        "algorithm": {"name": "grpo"},
        "sampling": {"max_new_tokens": 6 if toy else 12},
        "rollout": {"prompts_per_step": 8 if toy else 4, "samples_per_prompt": 4 if toy else 6},
        "update": {"learning_rate": 0.1, "warmup_steps": 0, "kl_old_limit": 10.0},
    }


def line(chosen: dict[str, Any], overrides: list[str], folder: Path) -> str:
    """Train, and return what came of it."""
    from steadyrl.core import config
    from steadyrl.core.rundir import RunDir
    from steadyrl.doctor.examine import diagnose
    from steadyrl.loop.train import open_session, train

    run = RunDir(folder)
    train(open_session(config.resolve(chosen, overrides)), run)
    logged = run.metrics()
    some = [logged[round(part * (len(logged) - 1) / 6)] for part in range(7)]
    whole, kept = ([f"{step.get(name, float('nan')):.2f}" for step in some] for name in ("kl_ref_full", "kl_ref_exact"))
    said = [
        f"{finding.cause} from step {finding.since_step}"
        for diagnosis in diagnose(run.path)
        for finding in diagnosis.findings
        if finding.check == "kl_runaway" and finding.state == "found"
    ]
    entropy = some[-1]["entropy"]
    return f"whole {', '.join(whole)}; kept {', '.join(kept)}; entropy {entropy:.2f}; {' '.join(said) or 'silent'}"


if __name__ == "__main__":
    main()
