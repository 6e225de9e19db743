"""The search task's learning curves in MLX and in PyTorch: python bench/mlx_curves.py [--runs FOLDER] [--backends mlx].

Trains each backend with every seed, and writes the table to bench/results/mlx_curves.md and the picture to
docs/pictures/mlx-curves.png. What is finished in --runs is not made again.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from datetime import date
from pathlib import Path

from steadyrl.core import config as configs
from steadyrl.core.metrics import answer_means
from steadyrl.core.rundir import RunDir, write_text
from steadyrl.core.stats import difference_of_means, student_quantile
from steadyrl.loop import launch
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import open_session
from steadyrl.maths.batch import make_batch

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "mlx_curves.md"
PICTURE = ROOT / "docs" / "pictures" / "mlx-curves.png"
BACKENDS = {"torch": "PyTorch", "mlx": "MLX"}
SEEDS, STEPS, LAST = tuple(range(8)), 40, 10
REQUESTS = 800  # that every trained policy answers, measured by PyTorch alone
SETTINGS = [
    f"run.steps={STEPS}", "run.preflight=off", "rollout.prompts_per_step=16", "evaluate.problems=100",
]  # fmt: skip
SHOWN = ("reward/mean", "reward/worth", "entropy", "kl_ref_k1_seq", "completion/length", "grad_norm")


def main() -> None:
    """Train what is lacking; with all runs there, write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "mlx-curves")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    args = parser.parse_args()
    for seed in args.seeds:
        for backend in args.backends:
            if finished(args.runs, backend, seed) is None:
                settings = [*SETTINGS, f"backend.name={backend}", f"run.seed={seed}"]
                launch.run(
                    ROOT / "examples" / "search.toml", [*settings, f"run.folder={place(args.runs, backend, seed)}"]
                )
    runs = {backend: [finished(args.runs, backend, seed) for seed in SEEDS] for backend in BACKENDS}
    if all(run for several in runs.values() for run in several):
        write(runs)


def place(folder: Path, backend: str, seed: int) -> Path:
    """Return where the runs of a backend and a seed are."""
    return folder / f"{backend}-s{seed}"


def finished(folder: Path, backend: str, seed: int) -> RunDir | None:
    """Return the finished run of a backend and a seed, if there is one."""
    runs = [RunDir.open(file.parent) for file in place(folder, backend, seed).glob("*/run.json")]
    return next((run for run in runs if run.status == "finished"), None)


def numbers(run: RunDir) -> dict[str, float]:
    """Return what is compared: means of the last steps, and what held-out answers earn at the end."""
    last = run.metrics()[-LAST:]
    found = {f"`{name}`, last {LAST} steps": statistics.mean(line[name] for line in last) for name in SHOWN}
    held = run.evaluations()["after"]
    found |= {f"held-out worth, {kind}": answer_means(held, kind)["worth"] for kind in ("sampled", "greedy")}
    return found | {f"entropy at the end, {REQUESTS} requests, PyTorch": entropy(run)}


def entropy(run: RunDir) -> float:
    """Return the entropy of the last policy's answers, in nats per token, whichever framework trained it."""
    policy = run.path / "checkpoints" / f"{run.checkpoints()[-1]:06d}" / "policy"
    settings = ["backend.name=torch", f"model.path={policy}"]
    session = open_session(configs.load(ROOT / "examples" / "search.toml", settings))
    answered = collect(session.backend, session.problems[:REQUESTS], 1, session.sampling, (0, 0))
    groups = [replace(one, rollouts=tuple(replace(r, reward=0.0) for r in one.rollouts)) for one in answered]
    batch = make_batch(groups, session.backend.tokenizer.pad_id)
    scores = session.backend.score(batch, session.sampling, frozenset())
    return float(scores.entropy[batch.completion_mask].mean())


def write(runs: dict[str, list[RunDir]]) -> None:
    """Write the table and the picture."""
    found = {backend: [numbers(run) for run in several] for backend, several in runs.items()}
    rows = []
    for name in found["torch"][0]:
        one, other = ([each[name] for each in found[backend]] for backend in ("torch", "mlx"))
        difference, low, high = difference_of_means(one, other)
        paired = [b - a for a, b in zip(one, other, strict=True)]
        reach = student_quantile(len(paired) - 1, 0.975) * statistics.stdev(paired) / len(paired) ** 0.5
        middle = statistics.mean(paired)
        levels = f"{statistics.mean(one):.3f} | {statistics.mean(other):.3f}"
        rows.append(
            f"| {name} | {levels} | {difference:+.3f} [{low:+.3f}, {high:+.3f}] "
            f"| [{middle - reach:+.3f}, {middle + reach:+.3f}] |"
        )
    text = (
        f"# Learning curves in MLX and in PyTorch\n\n{date.today().isoformat()}; `python bench/mlx_curves.py`: "
        f"examples/search.toml, {STEPS} steps of 16 requests, seeds 0 to {SEEDS[-1]}, base model, CPU.\n"
        "Means over the seeds. The first interval treats the runs as independent, the second pairs those of a seed.\n\n"
        "| measured | PyTorch | MLX | difference [95 %] | paired by seed |\n|---|--:|--:|--:|--:|\n"
    )
    write_text(RESULTS, text + "\n".join(rows) + "\n")
    draw(runs)


def draw(runs: dict[str, list[RunDir]]) -> None:
    """Draw the reward of every run, smoothed over five steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    for backend, colour in zip(BACKENDS, ("#1f77b4", "#d95f02"), strict=True):
        for number, run in enumerate(runs[backend]):
            rewards = [line["reward/mean"] for line in run.metrics()]
            smooth = [statistics.mean(rewards[max(0, i - 4) : i + 1]) for i in range(len(rewards))]
            axes.plot(range(1, len(smooth) + 1), smooth, color=colour, label=None if number else BACKENDS[backend])
    axes.set(xlabel="step", ylabel="mean reward, five steps")
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
