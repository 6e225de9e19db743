"""The work that every system does: prompts, lengths, reward, and the line that reports a step.

Standard library only: the peers import it inside environments that have nothing else in common.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

MODELS = Path(__file__).parent / ".models"
# Steps before the counted ones: the first makes the optimizer's state and fills the allocator.
WARM_UP = int(os.environ.get("WARM_UP", "3"))

MAXRSS_PER_MIB = 2**20 if sys.platform == "darwin" else 2**10  # getrusage counts bytes there, KiB elsewhere

LEARNING_RATE = 1e-5
KL_COEF = 0.04  # GRPO: weight of k3 in the loss; PPO: price of a nat in the token rewards
VALUE_COEF = 0.1
# Passes over a step's batch. Every pass is one optimizer step on the whole batch, as TRL's defaults have it.
EPOCHS = {"grpo": 1, "ppo": 4}

PROMPTS = (
    "put an item into the queue without blocking",
    "read a file line by line",
    "how do I sort a list of records by two of their fields",
    "parse a date written as text",
    "split a path into folder and name",
    "run a command and keep what it prints, with a limit on its time",
    "count how often each word occurs",
    "open a socket that listens",
    "write rows to a csv file",
    "find the largest of many numbers without sorting them all",
    "copy a folder with everything in it",
    "wait until several threads are done",
    "match a pattern at the start of a string",
    "draw a random sample without repeats",
    "keep a dictionary in the order of its keys",
    "convert seconds to hours and minutes",
    "compress a string of bytes",
    "send a message over smtp",
    "make a temporary file that goes away by itself",
    "iterate over pairs of neighbours in a list",
    "turn an object into json",
    "look up the size of a file",
    "cache the results of a function",
    "compare two sequences and show the differences",
    "get the parameters of a function by name",
    "encode text as base64",
    "start a process and talk to it",
    "round a number half to even",
    "merge several sorted streams into one",
    "stop a program when it is interrupted",
    "list the files that match a wildcard",
    "fill the gaps of a template with values",
)


@dataclass(frozen=True)
class Workload:
    """What one step does.

    Attributes:
        name: As it was asked for.
        model: See models.py.
        prompts: One group each.
        group: Completions per prompt.
        new_tokens: Length of every completion; the models never end one before.
    """

    name: str
    model: str
    prompts: tuple[str, ...]
    group: int
    new_tokens: int

    @property
    def samples(self) -> int:
        """Completions per step."""
        return len(self.prompts) * self.group

    @property
    def tokens(self) -> int:
        """Generated tokens per step."""
        return self.samples * self.new_tokens

    @property
    def folder(self) -> Path:
        """Where models.py puts the model for the peers: its tokenizer names an end token that cannot be drawn."""
        return MODELS / self.model

    @property
    def own_folder(self) -> Path:
        """Where it puts the same weights with the tokenizer as it was."""
        return self.folder / "own"


PRECISION = os.environ.get("PRECISION", "fp32")  # or "bf16": products in bfloat16, in TRL's GRPO and in ours
LORA = int(os.environ.get("LORA", "0"))  # rank of an adapter on all linear layers, in TRL's GRPO and in ours; 0: none
DEVICE = os.environ.get("DEVICE", "cpu")  # or "cuda"
SAMPLER = os.environ.get("SAMPLER", "own")  # or "colocate": vLLM in the trainer's process; ours only
BACKEND_ARGS = json.loads(os.environ.get("BACKEND_ARGS", "{}"))  # ours only: '{"weights": "bf16"}', for one
# CLOCK=processor counts the processor's time of all threads: on a busy machine the only one that can be compared.
CLOCK = os.environ.get("CLOCK", "wall")
now = time.process_time if CLOCK == "processor" else time.perf_counter
# Prompts, group, new tokens.
SIZES = {
    "base": (2, 8, 32), "7m": (2, 8, 32), "30m": (2, 8, 128), "smollm2": (4, 4, 48),
    "0.5b": (8, 8, 256), "1.5b": (8, 8, 256), "7b": (4, 8, 256),
}  # fmt: skip
# A model with a chat template reads the same texts as a chat, written out so that every system gets the same tokens.
CHATS = {
    "smollm2": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWrite a Boolean search query of at most four words for this request: {}<|im_end|>\n"
    "<|im_start|>assistant\n"
}


def workload(name: str) -> Workload:
    """Return a workload by name: "30m", or with other sizes "30m:<prompts>x<group>x<new tokens>"."""
    model, _, sizes = name.partition(":")
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", sizes)
    if model not in SIZES or (sizes and found is None):
        sys.exit(f"'{name}' is no workload; expected one of {', '.join(SIZES)}, or with sizes as in 30m:2x8x128")
    prompts, group, new_tokens = (int(size) for size in found.groups()) if found else SIZES[model]
    if not 1 <= prompts <= len(PROMPTS) or group < 1 or new_tokens < 1:
        sys.exit(f"'{name}': expected 1 to {len(PROMPTS)} prompts, and groups and new tokens of 1 or more")
    chat = CHATS.get(model, "{}")
    return Workload(name, model, tuple(chat.format(prompt) for prompt in PROMPTS[:prompts]), group, new_tokens)


def distinct_words(completions: Sequence[str], **columns: object) -> list[float]:
    """Return for every text the share of its words that are not repetitions, 0 without words: cheap, rarely equal."""
    split = [text.split() for text in completions]
    return [len(set(words)) / len(words) if words else 0.0 for words in split]


@dataclass(frozen=True)
class System:
    """Who does the work.

    Attributes:
        name: "<who>-<what>", such as "trl-grpo"; systems that end alike are compared.
        package: Whose version is the system's.
        others: Packages whose versions matter too.
    """

    name: str
    package: str
    others: Sequence[str] = ("torch", "transformers")


def report(system: System, work: Workload, threads: int, tokens: int, seconds: Mapping[str, float]) -> None:
    """Print the line of one counted step.

    Args:
        system: Who did it.
        work: What was done.
        threads: That torch computes with.
        tokens: Generated in this step, counted in the results.
        seconds: Of the whole "step", and of its parts "generate" (text to text), "score" and "update".
    """
    if tokens != work.tokens:
        sys.exit(f"{system.name} generated {tokens} tokens instead of {work.tokens}; the comparison would be void")
    line = {
        "system": system.name,
        "version": version_of(system.package),
        "packages": {name: version_of(name) for name in system.others},
        "threads": threads,
        "workload": work.name,
        "samples": work.samples,
        "tokens": tokens,
        **{f"{part}_s": value for part, value in seconds.items()},
        "peak_memory_mib": peak_memory_mib(),
    }
    print(json.dumps(line), flush=True)


def version_of(package: str) -> str:
    """Return the version of a package, which may be on PYTHONPATH without being installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def peak_memory_mib() -> float:
    """Return the most memory in use so far: of the GPU by tensors, else of the process, imports included."""
    if DEVICE == "cuda":
        return sys.modules["torch"].cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MAXRSS_PER_MIB


def arguments(description: str, what: Sequence[str] = ()) -> argparse.Namespace:
    """Read the arguments of a timed script: maybe what to time, then the workload and the number of counted steps."""
    parser = argparse.ArgumentParser(description=description)
    if what:
        parser.add_argument("what", choices=what)
    parser.add_argument("workload", type=workload)
    parser.add_argument("--steps", type=int, default=10, help=f"counted, after {WARM_UP} that are not")
    return parser.parse_args()
