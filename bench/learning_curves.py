"""The main job's learning curve for three seeds: python bench/learning_curves.py OUT.json; to compare two versions.

Run it in two checkouts (PYTHONPATH names the other one) with the same model, and compare the files:
python bench/learning_curves.py --compare BEFORE.json AFTER.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from steadyrl.core.metrics import answer_means
from steadyrl.loop import launch

ROOT = Path(__file__).parent.parent
SEEDS, STEPS, BLOCKS = (0, 1, 2), 90, 3
SETTINGS = [
    f"run.steps={STEPS}",
    "rollout.prompts_per_step=64",
    "evaluate.problems=400",
    "run.preflight=off",
]
SHOWN = ("reward/mean", "reward/retrieval", "entropy", "kl_ref_k1_seq", "completion/length", "grad_norm")


def main() -> None:
    """Train, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--model", default="base")
    args = parser.parse_args()
    if args.compare:
        compare(*(json.loads(file.read_text(encoding="utf-8")) for file in args.files))
        return
    result = [curve(seed, args.model) for seed in SEEDS]
    args.files[0].write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def curve(seed: int, model: str) -> dict[str, object]:
    """Return block means of the training metrics, and what held-out answers earn at the end."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [*SETTINGS, f"run.seed={seed}", f"model.path={model}", f"run.folder={folder}"]
        run = launch.run(ROOT / "examples" / "search.toml", settings)
        records, held = run.metrics(), run.evaluations()["after"]
    found: dict[str, object] = {"seed": seed}
    size = STEPS // BLOCKS
    for name in SHOWN:
        found[name] = [statistics.mean(r[name] for r in records[i * size : (i + 1) * size]) for i in range(BLOCKS)]
    for decoding in ("sampled", "greedy"):
        found[f"heldout F1, {decoding}"] = [answer_means(held, decoding)["retrieval"]]
    print(json.dumps(found), flush=True)
    return found


def compare(before: list[dict], after: list[dict]) -> None:
    """Print each number's mean over seeds in both versions, and their distance in standard errors."""
    print(f"{'metric':22} {'block':>5} {'before':>9} {'after':>9} {'distance / its standard error':>30}")
    for name in [key for key in before[0] if key != "seed"]:
        for block in range(len(before[0][name])):
            one, other = ([run[name][block] for run in runs] for runs in (before, after))
            error = ((statistics.variance(one) + statistics.variance(other)) / len(one)) ** 0.5
            distance = statistics.mean(other) - statistics.mean(one)
            levels = f"{statistics.mean(one):9.4f} {statistics.mean(other):9.4f}"
            print(f"{name:22} {block:5d} {levels} {distance / error:30.1f}")


if __name__ == "__main__":
    main()
