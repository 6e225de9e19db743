"""Write a pool of code problems of three kinds: python bench/code_pool.py FILE [--each 60].

One-step problems, which the warm start of examples/rlaif-code.toml often solves, two-step ones, which it can learn,
and functions of our own set, which are beyond it. In the format that ``task.args.problems`` reads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from steadyrl.environments.code.generated import generated_problems
from steadyrl.environments.code.problems import CodeProblem
from steadyrl.environments.code.published import load_problems
from steadyrl.environments.code.task import OWN_PROBLEMS


def line(problem: CodeProblem) -> str:
    """Return a problem as a line of JSON."""
    tests = [[list(case.arguments), case.expected] for case in problem.cases]
    found = {"id": problem.id, "prompt": problem.prompt, "entry_point": problem.entry_point, "tests": tests}
    return json.dumps(found | {"starter_code": problem.starter_code, "canonical_solution": problem.canonical_solution})


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--each", type=int, default=60)
    args = parser.parse_args()
    kinds = [generated_problems(4 * args.each, 5, steps, "b") for steps in ("one", "two")] + [
        load_problems(OWN_PROBLEMS)
    ]
    chosen = []
    for kind in kinds:
        order = np.random.default_rng(5).permutation(len(kind))[: args.each]
        chosen += [kind[i] for i in order]
    args.file.write_text("".join(line(problem) + "\n" for problem in chosen), encoding="utf-8")
    print(f"{len(chosen)} problems of {len(kinds)} kinds: {args.file}")


if __name__ == "__main__":
    main()
