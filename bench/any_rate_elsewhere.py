"""Does any starting rate work where the autopilot was not chosen? python bench/any_rate_elsewhere.py [CELL ...].

A cell is a task and an algorithm beside those of any_rate.py. It is trained from three starting rates with the
autopilot, and at five fixed rates without it: the same steps, problems and seeds (--seeds N, one if not given). What is
compared is the held-out reward of sampled answers at the end, as the mean over the seeds that all arms have. Ten
cells had no part in the choice of the autopilot's rules. Three of them with four times the steps judge its rule about
long runs, and the others, by which the rules were chosen, are counted apart. A cell decides little if little is learned
in it or if any rate will do, so the table says by which factor the best fixed rate raises the reward, and how many of
the five are near the best. The runs are in bench/results/any_rate_elsewhere.json, the table beside them; stopped, it
goes on where it was. Those of the rules before are in any_rate_elsewhere_before.json. The cell smollm2 needs `make
models/smollm2-start`; smollm2-words and rlaif-math need `make smollm2`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from any_rate import CLOSE, RESULTS, held_out, measuring, outcome
from rlaif_table import machine

from steadyrl.core import config
from steadyrl.core.rundir import RunDir, read_json, write_json, write_text
from steadyrl.loop import launch

ROOT = Path(__file__).parent.parent
RESULT = RESULTS.with_name("any_rate_elsewhere.json")
STARTS = (1e-6, 3e-4, 1e-2)
ARMS = ("fixed", "autopilot")
WARM_STARTS = ROOT / "runs" / "any-rate-elsewhere"
EVERYWHERE = (
    "run.preflight=off", "run.doctor_every=10", "run.checkpoint_every=20", "run.keep_checkpoints=2",
    "backend.device=cpu", "backend.threads=1", "evaluate.problems=1", "autopilot.cooldown=20",
)  # fmt: skip
LEARNED, FEW = 2.0, 2  # a cell decides much where learning and the choice of the rate matter by this
LOW, HIGH = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # adapters need higher rates
TABLE = (0.03, 0.1, 0.3, 1.0, 3.0)  # of the toy backend, whose policy is a table of logits


@dataclass(frozen=True)
class Cell:
    """A task and an algorithm.

    Attributes:
        example: The file in examples/ that it is a smaller run of.
        overrides: What differs from it.
        rates: The fixed rates.
        warm_start: The supervised example that it starts from, "" for none.
        warm_overrides: What differs from that one.
        answers: Held-out answers at the end.
    """

    example: str
    overrides: tuple[str, ...]
    rates: tuple[float, ...] = LOW
    warm_start: str = ""
    warm_overrides: tuple[str, ...] = ()
    answers: int = 400


_CODE = ("run.epochs=0", "run.steps=40", "rollout.prompts_per_step=12")
_PAGES = "task.args.levels=[1,2,3]"
# No rule of the autopilot was made after a look at these; the other cells taught it.
JUDGES = (
    "reinforce-search", "rlaif-operators", "ppo-code", "pages-rloo", "smollm2-words", "toy-alphabet",
    "toy-rlaif-founding", "toy-grpo-founding", "base-rlaif-founding", "base-grpo-founding",
)  # fmt: skip
_WORDS = ROOT / "bench" / "doctor" / "prompts.jsonl"
CELLS: dict[str, Cell] = {
    "reinforce-search": Cell(
        "search-grpo",
        (
            "model.path=base", "run.steps=40", "rollout.prompts_per_step=64", "rollout.samples_per_prompt=1",
            "algorithm.name=reinforce", "algorithm.args={kl_coef=0.01}",
        ),
    ),
    "rlaif-operators": Cell(
        "search-grpo",
        (
            "model.path=base", "run.steps=40", "rollout.prompts_per_step=12", "rollout.samples_per_prompt=6",
            f'task={{name="prompts",args={{path="{_WORDS}"}}}}',
            'rewards={"scores:operators"=1.0,"scores:distinct_words"=0.5}', "sampling.temperature=1.0",
            "algorithm.name=rlaif", 'algorithm.args={keep="best",baseline="group",kl_coef=0.02}',
        ),
    ),
    "ppo-code": Cell(
        "rlaif-code",
        (*_CODE, "task.args.generated_half=a", "rollout.samples_per_prompt=6", "algorithm.name=ppo",
         "algorithm.args={kl_coef=0.02}"),
        warm_start="rlaif-code-sft",
        warm_overrides=("task.args.generated_half=b", "run.seed=6"),
    ),
    "pages-rloo": Cell(
        "browse",
        (
            "run.steps=30", "task.args.levels=[2]", "rollout.prompts_per_step=8", "rollout.samples_per_prompt=6",
            "rollout.refill=0", "algorithm.name=rloo", "algorithm.args={kl_coef=0.01}",
        ),
        warm_start="browse-sft",
        warm_overrides=("task.args.levels=[2]", "run.seed=6", "run.steps=40"),
        answers=192,
    ),
    "smollm2-words": Cell(
        "smollm2/search-grpo",
        (
            "model.path=models/smollm2", "run.steps=24", "rollout.prompts_per_step=6", "rollout.samples_per_prompt=6",
            f'task={{name="prompts",args={{path="{_WORDS}"}}}}',
            'rewards={"scores:ten_words"=1.0,"scores:distinct_words"=0.5}', "sampling.max_new_tokens=24",
        ),
        HIGH,
        answers=200,
    ),
    "toy-alphabet": Cell(
        "search-grpo",
        (
            "backend.name=toy", "model.path=base", "run.steps=40", "rollout.prompts_per_step=16",
            f'task={{name="prompts",args={{path="{_WORDS}"}}}}', 'rewards={"scores:in_order"=1.0}',
            "sampling={max_new_tokens=8}", "algorithm.name=rloo", "algorithm.args={kl_coef=0.01}",
        ),
        TABLE,
    ),
    "toy-rlaif-founding": Cell(
        "rlaif-code",
        (
            "backend.name=toy", "model.path=base", "run.epochs=0", "run.steps=44", "rollout.prompts_per_step=16",
            "rollout.samples_per_prompt=6", f'task={{name="prompts",args={{path="{_WORDS}"}}}}',
            'rewards={"scores:early_letters"=1.0}', "sampling={max_new_tokens=12,temperature=1.2}",
            'algorithm.args={keep="above",reward_threshold=0.2,baseline="none",kl_coef=0.1}',
            "update.minibatches=1", "update.max_grad_norm=0.5", "update.warmup_steps=4",
        ),
        TABLE,
    ),
    "toy-grpo-founding": Cell(
        "search-grpo",
        (
            "backend.name=toy", "model.path=base", "run.steps=20", "rollout.prompts_per_step=32",
            "rollout.samples_per_prompt=8", f'task={{name="prompts",args={{path="{_WORDS}"}}}}',
            'rewards={"scores:in_order"=1.0}', "sampling={max_new_tokens=8,temperature=0.8}",
            'algorithm.args={kl_coef=0.0,scale="group"}', "update.epochs=1", "update.minibatches=4",
            "update.schedule=constant", "update.warmup_steps=0",
        ),
        TABLE,
    ),
    "lora": Cell(
        "search-grpo",
        (
            "model.path=base", "run.steps=40", "model.lora_rank=16", "model.lora_alpha=32",
            "rollout.prompts_per_step=16",
        ),
        HIGH,
    ),
    "ppo-16": Cell("search", ("run.steps=60", "rollout.prompts_per_step=16")),
    "smollm2": Cell(
        "smollm2/search-grpo",
        ("model.path=models/smollm2-start", "run.steps=30", "rollout.prompts_per_step=8"),
        HIGH,
        answers=200,
    ),
    "rlaif-math": Cell(
        "smollm2/math",
        (
            "run.steps=24", "rollout.prompts_per_step=16", "rollout.samples_per_prompt=6", "algorithm.name=rlaif",
            'algorithm.args={keep="best",baseline="group",kl_coef=0.0}',
        ),
        HIGH,
        answers=210,
    ),
    "rloo-search": Cell(
        "search-grpo",
        (
            "model.path=base", "run.steps=40", "rollout.prompts_per_step=16", "rollout.samples_per_prompt=8",
            "algorithm.name=rloo", "algorithm.args={kl_coef=0.02}",
        ),
    ),
    "pages-ppo": Cell(
        "browse",
        (
            "run.steps=30", _PAGES, "rollout.prompts_per_step=24", "rollout.samples_per_prompt=2", "rollout.refill=0",
            "algorithm.name=ppo", "algorithm.args={kl_coef=0.0}",
        ),
        warm_start="browse-sft",
        warm_overrides=(_PAGES, "run.seed=5", "run.steps=50"),
        answers=192,
    ),
    "rloo-letters": Cell(
        "search-grpo",
        (
            "model.path=base", "run.steps=40", "rollout.prompts_per_step=16", "rollout.samples_per_prompt=4",
            f'task={{name="prompts",args={{path="{_WORDS}"}}}}',
            'rewards={"scores:early_letters"=1.0,"scores:distinct_words"=0.5}', "sampling.temperature=1.0",
            "algorithm.name=rloo", "algorithm.args={kl_coef=0.02}",
        ),
    ),
    "lora-code": Cell(
        "rlaif-code",
        (
            *_CODE, "task.args.generated_half=a", "task.args.generated_steps=one", "model.lora_rank=8",
            "model.lora_alpha=16", "algorithm.name=grpo", "algorithm.args={kl_coef=0.02}",
        ),
        HIGH,
        warm_start="rlaif-code-sft",
        warm_overrides=("task.args.generated_half=b", "run.seed=5", "run.steps=30"),
    ),
    "pages-grpo": Cell(
        "browse",
        ("run.steps=30", "task.args.levels=[1]", "rollout.prompts_per_step=8", "rollout.samples_per_prompt=6",
         "rollout.refill=0"),
        warm_start="browse-sft",
        warm_overrides=("task.args.levels=[1]", "run.seed=5", "run.steps=30"),
        answers=192,
    ),
    "grpo-generated": Cell(
        "search-grpo",
        ("run.steps=40", 'task.args={corpus="generated",prompt="request: {request}\\nfound: {found}\\nquery:"}',
         "rollout.prompts_per_step=16"),
    ),
    "rlaif-code": Cell("rlaif-code", _CODE, warm_start="rlaif-code-sft"),
    "rloo-code": Cell(
        "rlaif-code",
        (*_CODE, "algorithm.name=rloo", "algorithm.args={kl_coef=0.02}"),
        warm_start="rlaif-code-sft",
    ),
    "browse": Cell(
        "browse",
        ("run.steps=30", "rollout.prompts_per_step=6", "rollout.refill=0"),
        warm_start="browse-sft",
        answers=192,
    ),
}  # fmt: skip
# The founding settings once more, on a network.
NETWORK = {"rlaif-founding": (), "grpo-founding": ("rollout.prompts_per_step=8",)}
CELLS |= {
    f"base-{name}": replace(
        CELLS[f"toy-{name}"], overrides=(*CELLS[f"toy-{name}"].overrides, "backend.name=torch", *more), rates=LOW
    )
    for name, more in NETWORK.items()
}
LONG = {f"{name}-long": name for name in ("reinforce-search", "rlaif-operators", "ppo-code")}
CELLS |= {
    long: replace(CELLS[name], overrides=(*CELLS[name].overrides, "run.steps=160")) for long, name in LONG.items()
}
KINDS = ("cells that taught the autopilot a rule", "cells that taught it nothing", "long ones, which taught it nothing")


def main() -> None:
    """Make what is lacking of the cells that are asked for, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], metavar="CELL", help=f"of {', '.join(CELLS)}")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 0 on")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, help="only these")
    asked = parser.parse_args()
    for name, seed in product(asked.cells or CELLS, range(asked.seeds)):
        for line in missing(name, seed, asked.arms):
            kept = [line, *recorded()]  # read anew: another process may make other cells
            write_json(RESULT, {"runs": sorted(kept, key=_place)})
            write_text(RESULT.with_suffix(".md"), page(kept))
            print({key: line[key] for key in ("cell", "seed", "arm", "rate", "after", "seconds")}, flush=True)


def missing(name: str, seed: int, arms: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Make the runs of a cell's arms that are not recorded, and yield the line of each."""
    cell = CELLS[name]
    done = {(line["cell"], line["seed"], line["arm"], line["rate"]) for line in recorded()}
    wanted = [("fixed", rate) for rate in cell.rates] + [("autopilot", rate) for rate in STARTS]
    for arm, rate in wanted:
        if arm not in arms or (name, seed, arm, rate) in done:
            continue
        mode = "act" if arm == "autopilot" else "off"
        own = [f"model.path={warm_start(cell)}"] if cell.warm_start else []
        with tempfile.TemporaryDirectory() as folder:
            changes = (
                f"run.seed={seed}", f"update.learning_rate={rate}", f"autopilot.mode={mode}", f"run.folder={folder}",
            )  # fmt: skip
            settings = config.load(example(cell.example), [*EVERYWHERE, *cell.overrides, *own, *changes])
            session = measuring(settings)
            before = held_out(session, cell.answers) if rate == cell.rates[0] else None  # the same for all of a cell
            found = outcome(session, folder, lambda settings=settings: launch.run(settings), cell.answers)
        yield {
            "cell": name,
            "seed": seed,
            "arm": arm,
            "rate": rate,
            "steps": settings.run.steps,
            "before": before,
            **found,
            "processor": machine()["processor"],
        }


def warm_start(cell: Cell) -> Path:
    """Return the policy of a cell's supervised example, which is trained once for all its runs."""
    folder = WARM_STARTS / cell.warm_start / (_slug(cell.warm_overrides) or "unchanged")
    runs = [RunDir(path) for path in sorted(folder.glob("*"))]
    run = next((run for run in runs if run.status == "finished"), None)
    if run is None:
        changes = ["run.preflight=off", "evaluate.problems=1", *cell.warm_overrides, f"run.folder={folder}"]
        run = launch.run(example(cell.warm_start), changes)
    return run.checkpoint_folder(run.checkpoints()[-1]) / "policy"


def example(name: str) -> Path:
    """Return the settings of an example."""
    return ROOT / "examples" / f"{name}.toml"


def recorded() -> list[dict[str, Any]]:
    """Return the lines of all runs so far."""
    return list(read_json(RESULT)["runs"]) if RESULT.is_file() else []


def page(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the cells that were made."""
    processors = " or ".join(sorted({line["processor"] for line in lines}))
    out = [
        "# The autopilot on other tasks and models",
        "",
        f"`python bench/any_rate_elsewhere.py`, one core of an {processors} per "
        "run. Held-out reward of sampled answers after the steps, by starting rate with the autopilot, and the best of "
        "five fixed rates without it, each the mean over the seeds.",
        "",
        "| cell | steps | seeds | before | best fixed rate | times before | fixed rates near | "
        + " | ".join(f"from {rate:g}" for rate in STARTS)
        + " | near |",
        "|---" * (len(STARTS) + 8) + "|",
    ]
    counted = {kind: [0, 0] for kind in KINDS}  # starts near the best rate, and all
    strict = [0, 0, 0]  # likewise in the cells that decide much, and those cells
    for name, cell in CELLS.items():
        own = [line for line in lines if line["cell"] == name]
        seeds = whole_seeds(cell, own)
        if not seeds:
            continue
        fixed = {rate: mean_after(own, "fixed", rate, seeds) for rate in cell.rates}
        helped = {rate: mean_after(own, "autopilot", rate, seeds) for rate in STARTS}
        best = max(fixed, key=lambda rate: fixed[rate])
        top = fixed[best]
        near = sum(value >= CLOSE * top for value in fixed.values())
        close = sum(value >= CLOSE * top for value in helped.values())
        kind = KINDS[2 if name in LONG else 1 if name in JUDGES else 0]
        before = fmean(line["before"] for line in own if line["before"] is not None and line["seed"] in seeds)
        if near < len(fixed):  # where any rate will do, a start near the best says nothing
            counted[kind][0] += close
            counted[kind][1] += len(STARTS)
        if top >= LEARNED * before and near <= FEW:
            strict = [total + more for total, more in zip(strict, (close, len(STARTS), 1), strict=True)]
        shown = [f"{helped[rate]:.3f}" + (f" ({helped[rate] / top:.0%})" if top else "") for rate in STARTS]
        out.append(
            f"| {name}{' (taught)' if kind == KINDS[0] else ''} | {own[0]['steps']} | {len(seeds)} | {before:.3f} | "
            f"{top:.3f} at {best:g} | {top / before:.2f} | {near} of {len(fixed)} | "
            + " | ".join(shown)
            + f" | {close} of {len(STARTS)} |"
        )
    out += ["", _apart(lines)]
    for kind, (near, total) in counted.items():
        out += ["", f"Within 10 % of the best of five fixed rates, {kind}: {near} of {total} starts."]
    decisive = (
        f"Cells that decide much, where the best fixed rate at least doubles the reward and at most {FEW} of the five "
        f"are near the best: {strict[2]}, with {strict[0]} of {strict[1]} starts near the best."
    )
    out += ["", decisive]
    return "\n".join(out) + "\n"


def _apart(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return how many fixed rates, and how many starts of single seeds, are near the best in the cells that judge."""
    fixed, single = list[float](), list[float]()
    for name in JUDGES:
        cell, own = CELLS[name], [line for line in lines if line["cell"] == name]
        seeds = whole_seeds(cell, own)
        for chosen in [seeds, *[[seed] for seed in seeds]] if seeds else []:
            rates = [mean_after(own, "fixed", rate, chosen) for rate in cell.rates]
            starts = [mean_after(own, "autopilot", rate, chosen) for rate in STARTS]
            if chosen is seeds:
                fixed += [value / max(rates) for value in rates]
            else:
                single += [value / max(rates) for value in starts]
    near = [sum(value >= CLOSE for value in values) for values in (fixed, single)]
    lowest = f", the lowest at {min(single):.0%}" if single else ""
    return (
        f"In the cells that taught it nothing {near[0]} of {len(fixed)} fixed rates are that close by means, and "
        f"{near[1]} of {len(single)} starts by single seeds{lowest}."
    )


def whole_seeds(cell: Cell, lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the seeds of which a cell's runs are all there."""
    wanted = {("fixed", rate) for rate in cell.rates} | {("autopilot", rate) for rate in STARTS}
    made = {(line["seed"], line["arm"], line["rate"]) for line in lines}
    return [seed for seed in sorted({line["seed"] for line in lines}) if {(seed, *arm) for arm in wanted} <= made]


def mean_after(lines: Sequence[Mapping[str, Any]], arm: str, rate: float, seeds: Sequence[int]) -> float:
    """Return the mean held-out reward at the end; a run that broke off counts 0."""
    return fmean(
        line["after"] or 0.0 for line in lines if line["arm"] == arm and line["rate"] == rate and line["seed"] in seeds
    )


def _slug(overrides: Sequence[str]) -> str:
    """Return a name of a folder for overrides."""
    return "-".join("".join(letter for letter in one if letter.isalnum() or letter == "=") for one in overrides)


def _place(line: Mapping[str, Any]) -> tuple[int, int, bool, float]:
    return list(CELLS).index(line["cell"]), line["seed"], line["arm"] == "autopilot", line["rate"]


if __name__ == "__main__":
    main()
