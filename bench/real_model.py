"""Take a pretrained model through every command: tiny runs, a kill, a resume, and exports that others load.

    python bench/real_model.py --model FOLDER [--only PART ...] [--folder FOLDER]

Writes bench/results/real_model.md: each command with its setting, processor and wall seconds, and what came of it. Exit
code 0 if every command did what it should, else 1. Give it one thread: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "real_model.md"
QUESTIONS = {
    "What is the capital of France? One word.": "Paris",
    "Which colour is the sky on a clear day? One word.": "Blue",
    "How many legs has a spider? One word.": "Eight",
    "Name the planet that we live on. One word.": "Earth",
    "What is frozen water called? One word.": "Ice",
    "Which animal barks? One word.": "Dog",
    "What is the opposite of hot? One word.": "Cold",
    "How many days has a week? One word.": "Seven",
}
REWARD = '''"""A reward of the user's own: the right word, and little else."""


def right_word(problem, rollout):
    words = rollout.text.lower().split()
    right = float(problem.columns["gold"].lower() in rollout.text.lower())
    return {"right_word": 0.5 * right + 0.5 / len(words) if words else 0.0, "right": right}
'''
CONFIG = """
[run]
steps = 2
folder = "runs"
checkpoint_every = 100
keep_checkpoints = 1
rollouts_every = 1
preflight = "off"
[backend]
device = "cpu"
threads = 1
[task]
name = "prompts"
args = {{ path = "questions.jsonl", heldout_share = 0.25 }}
[sampling]
max_new_tokens = 12
[rollout]
prompts_per_step = 2
samples_per_prompt = 2
[update]
epochs = 1
minibatches = 1
learning_rate = 1e-4
warmup_steps = 0
[model]
path = "{model}"
"""
OWN_REWARD = 'rewards={"one_word:right_word"=1.0}'
JUDGED = 'rewards={judge={weight=1.0,mode="likelihood",model="MODEL",cache=""}}'
ALGORITHMS = {"ppo": OWN_REWARD, "grpo": OWN_REWARD, "rlaif": JUDGED}
WEIGHTS = {"full": ("model.lora_rank=0", "update.learning_rate=1e-5"), "LoRA": ("model.lora_rank=8",)}
PRECISIONS = ("fp32", "bf16")
CLOSE = 1e-4  # nats
# The commands that read a run do the same for every run; these two take them all.
FULLY = ("grpo, LoRA, bf16", "grpo, full, fp32")
ROWS = "rows.jsonl"  # in the folder, so that a bench that was stopped goes on


@dataclass
class Row:
    """One line of the table."""

    command: str
    setting: str
    processor_s: float
    wall_s: float
    result: str
    passed: bool


class Bench:
    """Runs commands in a folder of their own, and writes the table after each."""

    def __init__(self, model: str, folder: Path, results: Path):
        self.model, self.folder, self.results = model, folder, results
        known = folder / ROWS
        lines = known.read_text(encoding="utf-8").splitlines() if known.is_file() else []
        self.rows = [Row(**json.loads(line)) for line in lines]
        (folder / "questions.jsonl").write_text(
            "".join(json.dumps({"prompt": q, "gold": a}) + "\n" for q, a in QUESTIONS.items())
        )
        (folder / "one_word.py").write_text(REWARD)
        (folder / "config.toml").write_text(CONFIG.format(model=model))

    def run(
        self,
        setting: str,
        *arguments: object,
        code: int = 0,
        said: Callable[[str], str] = lambda text: text.strip().splitlines()[-1] if text.strip() else "",
        program: Sequence[str] = (sys.executable, "-m", "steadyrl"),
        kill_when: Callable[[], bool] | None = None,
        name: str = "",
    ) -> str:
        """Run a command to its end, or kill it, and add its line; return its output."""
        began = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(
                [*program, *map(str, arguments)], cwd=self.folder, env=environment, stdout=out, stderr=out
            )
            while kill_when is not None and not kill_when():
                time.sleep(0.05)
            if kill_when is not None:
                process.send_signal(signal.SIGKILL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            text = out.read()
        passed = process.returncode == (-signal.SIGKILL if kill_when else code)
        words = name or " ".join(str(a).replace(str(self.folder) + "/", "") for a in arguments)
        result = said(text) if passed else f"exit code {process.returncode}: {text.strip()[-300:]}"
        self.add(words, setting, used.ru_utime + used.ru_stime, time.perf_counter() - began, result, passed)
        (self.folder / f"output-{len(self.rows):02d}.txt").write_text(f"$ steadyrl {words}\n{text}")
        return text

    def add(self, command: str, setting: str, processor_s: float, wall_s: float, result: str, passed: bool) -> None:
        """Add a line and write the table."""
        result = result.replace(f"{self.folder}/", "").replace(self.model, "MODEL")
        row = Row(command, setting, processor_s, wall_s, result, passed)
        self.rows.append(row)
        with (self.folder / ROWS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(f"{'ok  ' if passed else 'FAIL'} {processor_s:6.1f} s  {setting}: {command.split()[0]}: {result[:150]}")
        sys.stdout.flush()
        self.results.write_text(table(self.rows, self.model), encoding="utf-8")

    def newest(self) -> RunDir:
        """Return the run that was started last."""
        return RunDir.open(max((self.folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns))

    def train(self, algorithm: str, weights: str, precision: str, *more: str) -> RunDir:
        """Train a tiny run and return it."""
        command = self.command(algorithm, weights, precision, *more)
        self.run(f"{algorithm}, {weights}, {precision}", *command, said=learned)
        return self.newest()

    def command(self, algorithm: str, weights: str, precision: str, *more: str) -> list[str]:
        """Return the command of a tiny run."""
        settings = [f"algorithm.name={algorithm}", f"backend.precision={precision}", *WEIGHTS[weights]]
        settings.append(ALGORITHMS[algorithm].replace("MODEL", self.model))
        return ["train", "config.toml", *settings, *more]


def learned(text: str) -> str:
    """Return the held-out lines of a training's output."""
    found = [line for line in text.splitlines() if line.startswith(("held-out", "verdict"))]
    return "; ".join(found)


def table(rows: Sequence[Row], model: str) -> str:
    """Return the page of results."""
    import platform

    lines = [
        "# A pretrained model through every command",
        "",
        f"`python bench/real_model.py --model {Path(model).name}`, one thread of an {platform.machine()} processor",
        "that other programs shared: compare processor seconds. Each command is a process of its own.",
        "Its seconds include the start of Python and the loading of the model (about 6 s). The runs are tiny: 2 steps",
        "of 2 prompts x 2 answers of 12 tokens, 8 questions, of which 2 are held out. They show that every part works",
        "on this model, not that it learns.",
        "",
        "| command | setting | processor s | wall s | result |",
        "|---|---|--:|--:|---|",
    ]
    for row in rows:
        command = row.command.replace(model, "MODEL").replace(f"{ROOT}/", "").replace("|", "\\|")
        command = command if len(command) <= 90 else f"{command[:60]} ..."
        result = " ".join(row.result.split()).replace("|", "\\|")
        mark = "" if row.passed else "**FAILED** "
        lines.append(
            f"| `{command}` | {row.setting} | {row.processor_s:.1f} | {row.wall_s:.0f} | {mark}{result[:260]} |"
        )
    return "\n".join(lines) + "\n"


def before_training(bench: Bench) -> None:
    """Check the task, the judge and everything else before a run."""
    bench.run("own reward", "task", "check", "config.toml", OWN_REWARD, said=lambda t: f"{t.count('ok  ')} checks ok")
    code = ["backend.device=cpu", 'task.args={problems="generated",generated_count=40}']
    judged = JUDGED.replace("judge={", "tests=1.0,judge={").replace("MODEL", bench.model)
    config = ROOT / "examples" / "rlaif-code.toml"
    bench.run("likelihood judge", "judge", config, judged, *code, "--problems", 4, "--repeats", 1)
    for algorithm, weights, precision in (("grpo", "LoRA", "bf16"), ("ppo", "full", "fp32")):
        command = bench.command(algorithm, weights, precision)[1:]
        bench.run(
            f"{algorithm}, {weights}, {precision}", "preflight", *command,
            said=lambda text: "; ".join(line.strip() for line in text.splitlines() if "about" in line)[:250],
        )  # fmt: skip


def comparable(run: RunDir) -> list[dict[str, object]]:
    """Return what must not depend on a kill."""
    return json.loads(json.dumps([repeatable(line) for line in run.metrics()]))


def killed_and_resumed(bench: Bench, weights: str) -> None:
    """Kill a run after its first step, resume it, and compare with the unbroken run."""
    more = ("run.checkpoint_every=1", "evaluate.every=1", "evaluate.patience=9")
    whole = bench.train("grpo", weights, "fp32", *more)
    known = set((bench.folder / "runs").iterdir())

    def first_step() -> bool:
        fresh = set((bench.folder / "runs").iterdir()) - known
        return any(len(RunDir(path).metrics()) >= 1 for path in fresh)

    setting = f"grpo, {weights}, fp32, killed"
    bench.run(setting, *bench.command("grpo", weights, "fp32", *more), kill_when=first_step, said=lambda text: "killed")
    (broken,) = (RunDir(path) for path in set((bench.folder / "runs").iterdir()) - known)
    bench.run(setting, "train", "--resume", broken.path, said=learned)
    began = time.perf_counter()
    same = comparable(whole) == comparable(broken) and whole.info()["best"] == broken.info()["best"]
    said = "metrics of all steps and the best checkpoint are those of the unbroken run" if same else "they differ"
    bench.add("(compared)", setting, 0.0, time.perf_counter() - began, said, same)
    shutil.rmtree(whole.path)


def after_training(bench: Bench, run: RunDir, setting: str, weights: str) -> None:
    """Use what was trained: doctor, report, sample, compare, export, serve, and load the exports elsewhere."""
    path = run.path
    if setting in FULLY:
        bench.run(setting, "doctor", path, code=1 if sick(run) else 3)
        bench.run(setting, "report", path)
        bench.run(setting, "sample", path, "Which animal says meow? One word.", "--samples", 2)
        bench.run(
            setting, "compare", "base", path, "--task", path, "--problems", 2, "--samples", 1,
            said=lambda text: next((line for line in text.splitlines() if " B " in f" {line} "), text[:200]),
        )  # fmt: skip
    exports = {"adapter": [], "merged": ["--merge"]} if weights == "LoRA" else {"weights": []}
    for kind, options in exports.items():
        to = bench.folder / "exports" / f"{setting.replace(', ', '-')}-{kind}"
        bench.run(setting, "export", path, *options, "--to", to)
        program = (sys.executable, str(Path(__file__)), "--check-export")
        bench.run(f"{setting}, {kind}", path, to, program=program, name="(log-probs of the export)")
        if setting in FULLY:
            bench.run(setting, "serve", path, "--folder", to, said=lambda text: f"{text.count('curl')} servers")
        if to.is_dir() and kind != "adapter":
            shutil.rmtree(to)


def sick(run: RunDir) -> bool:
    """Say whether the doctor finds something in so short a run."""
    from steadyrl.doctor.examine import diagnose

    return diagnose(run.path)[0].verdict == "sick"


def check_export(run_path: Path, exported: Path) -> int:
    """Compare the log-probs that a run's policy samples with those of its export, loaded without steadyrl.

    Both compute in float32, whatever the run trained in: otherwise the rounding would be compared.
    """
    import numpy as np
    import torch
    import transformers

    from steadyrl.core import config
    from steadyrl.core.types import Sampling
    from steadyrl.loop import checkpoint
    from steadyrl.loop.train import open_session

    run = RunDir.open(run_path)
    session = open_session(config.resolve(run.resolved(), ["backend.precision=fp32"]))
    checkpoint.load(run, session.backend)
    prompts = [session.backend.tokenizer.encode_prompt(question) for question in list(QUESTIONS)[:2]]
    drawn = session.backend.generate(prompts, Sampling(max_new_tokens=12), [1, 2])
    del session
    if (exported / "adapter_config.json").is_file():
        import peft

        loader, model = "peft", peft.AutoPeftModelForCausalLM.from_pretrained(exported)
    else:
        loader, model = "transformers", transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    gap = 0.0
    for question, prompt, one in zip(QUESTIONS, prompts, drawn, strict=False):
        talk = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == prompt.tolist(), "the prompt is another"
        ids = torch.from_numpy(np.concatenate([prompt, one.ids]).astype(np.int64))[None]
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
        found = logp[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
        gap = max(gap, float(np.abs(found - one.logprobs).max()))
    tokens = sum(len(one.ids) for one in drawn)
    print(f"{loader}: log-probs of {tokens} sampled tokens differ by at most {gap:.2g} nats")
    return 0 if gap < CLOSE else 1


def parts() -> list[str]:
    """Return the names of all parts."""
    runs = [f"{a}, {w}, {p}" for a in ALGORITHMS for w in WEIGHTS for p in PRECISIONS]
    return ["before", *runs, *(f"kill, {weights}" for weights in WEIGHTS)]


def do(bench: Bench, part: str) -> None:
    """Run one part."""
    if part == "before":
        before_training(bench)
    elif part.startswith("kill"):
        killed_and_resumed(bench, part.split(", ")[1])
    else:
        algorithm, weights, precision = part.split(", ")
        run = bench.train(algorithm, weights, precision)
        after_training(bench, run, part, weights)
        if part not in FULLY:
            shutil.rmtree(run.path)


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model folder in Hugging Face layout")
    parser.add_argument(
        "--only", nargs="*", default=[], choices=parts(), metavar="PART", help=f"some of: {'; '.join(parts())}"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, help="keep configs, outputs and runs here")
    parser.add_argument("--check-export", nargs=2, metavar=("RUN", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.check_export:
        return check_export(*map(Path, args.check_export))
    if not args.model:
        parser.error("give --model FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        kept = args.folder or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        bench = Bench(str(Path(args.model).resolve()), kept, args.results)
        for part in args.only or parts():
            do(bench, part)
    return 0 if all(row.passed for row in bench.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
