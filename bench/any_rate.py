"""Does any starting learning rate work with the autopilot? python bench/any_rate.py [--jobs 2] [--table].

Real training runs of the base model: two rewards, five starting rates, three seeds, and for each of them the autopilot
acting, no autopilot, and random patches on the doctor's schedule. The mark is the best rate of a tuned grid without the
autopilot. One line of bench/results/any_rate.jsonl per finished run: stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core import config
from steadyrl.core.errors import DivergedError, SteadyError
from steadyrl.core.rundir import RunDir, append_line, read_lines
from steadyrl.loop import checkpoint, launch
from steadyrl.loop.autopilot.knobs import MOVES, RATE_MULTIPLIER, configured, read_knob, set_knob
from steadyrl.loop.checkpoint import State
from steadyrl.loop.rewards.combine import score_groups
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import Session, one_step, open_session

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "doctor"))  # the reward and the prompts of its word task

RESULTS = HERE / "results" / "any_rate.jsonl"
STEPS, LOOKS, COOLDOWN = 80, 10, 20  # steps of a run, between examinations, before a move is judged
RATES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
TUNED = (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)
SEEDS = (0, 1, 2)
ARMS = ("act", "off", "random")
ANSWERS = 400  # held-out answers per run, over several draws where there are fewer problems
_KEY = 2**31 + 6  # draws of this measurement
CLOSE = 0.9  # of the mark; and, harder, of what it has over the untrained policy
REWARDS: Mapping[str, dict[str, Any]] = {
    "length": {
        "task": {"name": "prompts", "args": {"path": str(HERE / "doctor" / "prompts.jsonl")}},
        "rewards": {"scores:target_words": 1.0, "scores:distinct_words": 0.5},
        "sampling": {"max_new_tokens": 24},
    },
    "retrieval": {
        "task": {"name": "search", "args": {"corpus": "stdlib"}},
        "rewards": {"retrieval": 1.0, "structure": 0.1, "parseable": 0.1},
        "sampling": {"max_new_tokens": 20, "temperature": 0.7},
    },
}


@dataclass(frozen=True)
class Plan:
    """One run: which reward, which arm ("tuned" for the mark), which starting rate, which seed, how long."""

    reward: str
    arm: str
    rate: float
    seed: int
    steps: int = STEPS


def plans(steps: int, seeds: Sequence[int]) -> Iterator[Plan]:
    """Yield all runs, one seed after the other, so that a stopped experiment is balanced."""
    for seed in seeds:
        for reward in REWARDS:
            yield from (Plan(reward, "tuned", rate, seed, steps) for rate in TUNED)
            yield from (Plan(reward, arm, rate, seed, steps) for rate in RATES for arm in ARMS)


def settings(plan: Plan, folder: str) -> config.Config:
    """Return the settings of a run whose directory lies in ``folder``."""
    data = {
        **REWARDS[plan.reward],
        "run": {
            "steps": plan.steps,
            "seed": plan.seed,
            "doctor_every": LOOKS,
            "checkpoint_every": 20,
            "preflight": "off",
            "folder": folder,
        },
        "evaluate": {"problems": 1},  # held_out measures, on more answers than an evaluation draws
        "backend": {"device": "cpu", "threads": 1},
        "rollout": {"prompts_per_step": 64, "samples_per_prompt": 1},
        "algorithm": {"name": "ppo", "args": {"kl_coef": 0.004, "value_coef": 1.0, "entropy_coef": 0.005}},
        "update": {"learning_rate": plan.rate, "warmup_steps": 3, "schedule": "linear", "epochs": 2, "minibatches": 2},
        "autopilot": {"mode": "act" if plan.arm == "act" else "off", "cooldown": COOLDOWN},
    }
    return config.resolve(data)


def make(plan: Plan, answers: int = ANSWERS) -> dict[str, Any]:
    """Make a run and return its line: held-out reward before and after, and what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        run_settings = settings(plan, folder)
        session = measuring(run_settings)
        before = held_out(session, answers) if plan.arm == "tuned" else None  # the same for all runs of a reward
        if plan.arm == "random":
            found = outcome(session, folder, lambda: random_patches(session, RunDir(folder)), answers)
        else:
            found = outcome(session, folder, lambda: launch.run(run_settings), answers)
    return {**asdict(plan), "before": before, **found}


def measuring(run_settings: config.Config) -> Session:
    """Open a session that has all held-out problems, where the run's own evaluations ask one."""
    return open_session(config.resolve(config.dump(run_settings), ["evaluate.problems=0"]))


def outcome(session: Session, folder: str, train: Callable[[], object], answers: int = ANSWERS) -> dict[str, Any]:
    """Train, and return the held-out reward afterwards and what became of the run.

    Args:
        session: Gets the weights of the run's last checkpoint; without one it was trained itself.
        folder: Will have the run directory, or be it.
        train: Makes the run.
        answers: See ``held_out``.
    """
    began, error = time.perf_counter(), None
    try:
        train()
    except SteadyError as caught:
        error = str(caught).partition(";")[0]
    lines = next(iter(Path(folder).rglob("metrics.jsonl")), None)
    run = RunDir(folder if lines is None else lines.parent)
    checkpoint.load(run, session.backend)
    rows = run.metrics()
    return {
        "after": held_out(session, answers),
        "error": error,
        "entropy": rows[-1]["entropy"] if rows else None,
        "rate_at_the_end": rows[-1]["learning_rate"] if rows else None,
        "actions": [[line.get(name) for name in ("step", "kind", "knob", "cause")] for line in run.actions()],
        "seconds": round(time.perf_counter() - began, 1),
    }


def random_patches(session: Session, run: RunDir) -> None:
    """Train, and change a random knob by one of the autopilot's own moves, or back, whenever it may act.

    The loop is its own here, for no run of the front door lets anybody change a knob between two steps.
    """
    state = State(algorithm=dict(session.algorithm.state))
    generator = np.random.default_rng([session.config.run.seed, 7])
    while state.step < session.config.run.steps:
        _, found = one_step(session, state)
        append_line(run.metrics_file, {"step": state.step - 1, "attempt": 0, **found})
        if state.step % COOLDOWN == 0:
            patch(session.config, state, run.metrics(), generator)


def patch(settings: config.Config, state: State, rows: list[dict[str, Any]], generator: np.random.Generator) -> None:
    """Make one random move; for the learning rate up as well as down, since no finding says which."""
    move = MOVES[str(generator.choice(list(MOVES)))]
    now = read_knob(settings, state.autopilot, state.algorithm, move.knob)
    start = configured(settings, move.knob)
    assert now is not None and start is not None, "PPO has every knob"
    up = move.knob == RATE_MULTIPLIER and generator.random() < 0.5
    value = 2.0 * now if up else move.step(now, start, rows)
    state.autopilot, numbers = set_knob(state.autopilot, state.algorithm, move.knob, value)
    state.algorithm = {**state.algorithm, **numbers}


def held_out(session: Session, answers: int = ANSWERS) -> float | None:
    """Return the mean held-out reward of sampled answers, or None where nothing can be sampled any more."""
    problems = session.heldout[:answers]
    draws = -(-answers // len(problems))
    try:
        groups = collect(session.backend, problems, draws, session.sampling, (0, _KEY), environment=session.environment)
    except (DivergedError, ValueError, RuntimeError):  # weights that are not finite have no distribution
        return None
    scored = score_groups(groups, session.terms)
    rewards = [r.reward for group in scored for r in group.rollouts if r.reward is not None]
    return float(np.mean(rewards)) if rewards else None


def key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells one run from another."""
    return tuple(line[name] for name in ("reward", "arm", "rate", "seed", "steps"))


def table(lines: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table: mean held-out reward over seeds, and how many runs came close."""
    out = []
    for reward in REWARDS:
        own = [line for line in lines if line["reward"] == reward]
        tuned = {rate: values(own, "tuned", rate) for rate in TUNED if values(own, "tuned", rate)}
        if not tuned:
            continue
        best = max(tuned, key=lambda rate: np.mean(tuned[rate]))
        mark, start = (
            float(np.mean(tuned[best])),
            float(np.mean([line["before"] for line in own if line["before"] is not None])),
        )
        out += [f"{reward}: untrained {start:.3f}; the mark, tuned to {best:g}: {mark:.3f}", ""]
        out += [
            "| arm | "
            + " | ".join(f"{rate:g}" for rate in RATES)
            + " | within 10 % of the mark | of the best tuned run | nine tenths of its gain | lost |"
        ]
        out += ["|---" * (len(RATES) + 5) + "|"]
        for arm in ARMS:
            found = {rate: values(own, arm, rate) for rate in RATES}
            every = [value for several in found.values() for value in several]
            near = sum(value >= CLOSE * mark for value in every)
            top = sum(value >= CLOSE * max(max(several) for several in tuned.values()) for value in every)
            gained = sum(value >= start + CLOSE * (mark - start) for value in every)
            lost = sum(1 for line in own if line["arm"] == arm and (line["error"] or line["after"] is None))
            cells = [f"{np.mean(several):.3f}" if several else "" for several in found.values()]
            out.append(f"| {arm} | " + " | ".join(cells) + f" | {near} of {len(every)} | {top} | {gained} | {lost} |")
        out.append("")
    return "\n".join(out)


def beside(lines: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """Return a line for each reward: what these runs end at beside others of the same arm, rate and seed.

    Two starts of a seed whose search ends at the same rate are one run, and count once.
    """
    out, theirs = [], {key(line): line["after"] or 0.0 for line in others}
    for reward in REWARDS:
        same = [line for line in lines if line["reward"] == reward and key(line) in theirs]
        distinct = {(line["seed"], line["after"] or 0.0, theirs[key(line)]) for line in same}
        if len(distinct) < 2:
            continue
        ours, others_end = np.array([ends for _, *ends in sorted(distinct)]).T
        more = ours - others_end
        out.append(
            f"{reward}: {ours.mean():.3f} beside {others_end.mean():.3f} in {len(ours)} runs, "
            f"{more.mean():+.4f}, standard error {more.std(ddof=1) / len(ours) ** 0.5:.4f}"
        )
    return "\n".join(out)


def values(lines: list[dict[str, Any]], arm: str, rate: float) -> list[float]:
    """Return the held-out rewards of an arm at a starting rate, a lost run counting as the untrained policy's 0."""
    return [line["after"] or 0.0 for line in lines if line["arm"] == arm and line["rate"] == rate]


def main() -> None:
    """Make what is lacking, and print the table."""
    args = arguments()
    done = {key(line) for line in read_lines(args.out)}
    mine = [plan for plan in plans(args.steps, args.seeds or SEEDS) if chosen(plan, args)][args.part :: args.parts]
    wanted = [plan for plan in mine if key(asdict(plan)) not in done]
    if args.jobs > 1 and not args.table:
        share_out(args)
    elif not args.table:
        for plan in wanted:
            line = make(plan, args.answers)
            append_line(args.out, line)
            print(f"{plan}: {line['before']} -> {line['after']} in {line['seconds']} s", flush=True)
    if args.parts == 1:
        made = [line for line in read_lines(args.out) if line["steps"] == args.steps]
        if args.beside:
            of_seeds = [line for line in made if not args.seeds or line["seed"] in args.seeds]
            print(beside(of_seeds, read_lines(args.beside)))
        else:
            print(table(made))


def chosen(plan: Plan, args: argparse.Namespace) -> bool:
    """Return True for a run that the command line asks for."""
    return (not args.rates or plan.rate in args.rates) and (not args.arms or plan.arm in args.arms)


def share_out(args: argparse.Namespace) -> None:
    """Make the runs in several processes of one thread each; lines are appended whole."""
    command = [sys.executable, *sys.argv, "--jobs", "1", "--parts", str(args.jobs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    running = [subprocess.Popen([*command, "--part", str(part)], env=environment) for part in range(args.jobs)]
    codes = [process.wait() for process in running]
    if any(codes):
        sys.exit("a process failed; what was finished is kept, start again to make the rest")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--rates", type=float, nargs="+", help="only these")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"{SEEDS} if not given; with --beside all there are")
    parser.add_argument("--arms", nargs="+", choices=("tuned", *ARMS), help="only these")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--answers", type=int, default=ANSWERS, help="held-out answers of a run")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    parser.add_argument("--beside", type=Path, help="print differences from these runs in place of the table")
    parser.add_argument("--parts", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
