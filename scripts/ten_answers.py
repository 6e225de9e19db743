"""Print what a model answered to ten held-out requests, drawn at random, before and after each of some runs.

    python scripts/ten_answers.py RUN [RUN ...]

Runs that go on from one another are given in their order: the answers before the second run are those after the first.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

SHOWN = 10
WIDTH = 60


def main(runs: list[Path]) -> None:
    """Print a block for each request that every run was evaluated on."""
    stages = [answers(runs[0] / "evaluations" / "before.jsonl")]
    stages += [answers(run / "evaluations" / "after.jsonl") for run in runs]
    common = sorted(set.intersection(*(set(stage) for stage in stages)))
    for problem in random.Random(0).sample(common, min(SHOWN, len(common))):
        print(stages[0][problem]["prompt"])
        for name, stage in zip(["before", *(f"after {run.name}" for run in runs)], stages, strict=True):
            answer = stage[problem]["answers"]["greedy"]
            text = " ".join(answer["text"].split())
            shown = text if len(text) <= WIDTH else f"{text[:WIDTH]} ..."
            print(f"    {answer['metric']:.2f}  {shown or '(nothing)'}    ({name})")


def answers(path: Path) -> dict[str, dict]:
    """Return the records of an evaluation by problem."""
    return {(record := json.loads(line))["problem"]: record for line in path.read_text().splitlines()}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python scripts/ten_answers.py RUN [RUN ...]")
    main([Path(name) for name in sys.argv[1:]])
