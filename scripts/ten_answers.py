"""Print what a model answers to ten held-out requests, drawn at random: now, or before and after each of some runs.

    python scripts/ten_answers.py CONFIG.toml [SETTING=VALUE ...]
    python scripts/ten_answers.py RUN [RUN ...]

Runs that go on from one another are given in their order: the answers before the second run are those after the first.
A config's model is asked the requests that its run would be shown with.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path

from steadyrl.core import config
from steadyrl.loop.evaluate import evaluate
from steadyrl.loop.train import open_session

SHOWN = 10
WIDTH = 60


def main(paths: list[Path]) -> None:
    """Print a block for each of ten requests that every run was evaluated on."""
    stages = [answers(paths[0] / "evaluations" / "before.jsonl")]
    stages += [answers(run / "evaluations" / "after.jsonl") for run in paths]
    names = ["before", *(f"after {run.name}" if len(paths) > 1 else "after" for run in paths)]
    for problem in ten_of(set.intersection(*(set(stage) for stage in stages))):
        print(stages[0][problem]["prompt"])
        for name, stage in zip(names, stages, strict=True):
            print(f"{line(stage[problem]['answers']['greedy'])}    ({name})")


def answers(path: Path) -> dict[str, dict]:
    """Return the records of an evaluation by problem; a run that lacks the evaluation ends the script."""
    if not path.is_file():
        sys.exit(f"there is no {path}: the run is not finished; go on with: steadyrl train --resume {path.parents[1]}")
    return {(record := json.loads(text))["problem"]: record for text in path.read_text().splitlines()}


def ask(path: Path, overrides: list[str]) -> None:
    """Print a block for each of ten of a config's held-out problems, with what its model answers as it is."""
    session = open_session(config.load(path, overrides))
    by_id = {problem.id: problem for problem in session.heldout}
    chosen = [by_id[id] for id in ten_of(by_id)]
    for record in evaluate(session.backend, chosen, session.terms, session.config, session.task.metric):
        print(record["prompt"])
        print(line(record["answers"]["greedy"]))


def ten_of(problems: Iterable[str]) -> list[str]:
    """Return ten of the ids of problems, the same ones for the same ids."""
    known = sorted(problems)
    return random.Random(0).sample(known, min(SHOWN, len(known)))


def line(answer: dict) -> str:
    """Return an answer's score and text as one line, with the turns of an episode apart."""
    text = " | ".join(" ".join(turn.split()) for turn in answer.get("turns") or [answer["text"]])
    return f"    {answer['metric']:.2f}  {text[:WIDTH] + ' ...' * (len(text) > WIDTH) or '(nothing)'}"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python scripts/ten_answers.py CONFIG.toml [SETTING=VALUE ...], or RUN [RUN ...]")
    if sys.argv[1].endswith(".toml"):
        ask(Path(sys.argv[1]), sys.argv[2:])
    else:
        main([Path(name) for name in sys.argv[1:]])
