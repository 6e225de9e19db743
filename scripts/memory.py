"""What fits into which memory, by ``footprint``, and how far that is from measured peaks.

    python scripts/memory.py            write the table of docs/scaling.md
    python scripts/memory.py measure [MODEL [WAY ...]]    train small random models on the CPU, and compare

A measured peak is what all tensors together hold at most. A process has its libraries beside them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from steadyrl.backends.torch.footprint import BF16, Setup, Shape, Work, peak, resident_of, sampling_peak, update_peak
from steadyrl.core.protocols import Update

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
BEGIN, END = "<!-- memory: scripts/memory.py -->\n", "<!-- end of memory -->\n"
# The shapes of Qwen2.5.
MODELS = {
    "0.5B": Shape(151_936, 896, 24, 896, 128, 4864, tied=True),
    "1.5B": Shape(151_936, 1536, 28, 1536, 256, 8960, tied=True),
    "7B": Shape(152_064, 3584, 28, 3584, 512, 18_944, tied=False),
}
WORK = Work(tokens=8192, attended=8192, chosen=6144, rows=64, length=1024)
RANK = 16
WAYS = {
    "all weights, fp32": Setup(products=BF16, checkpointing=True),
    "all weights, fp32, reference": Setup(products=BF16, checkpointing=True, reference=True),
    "all weights, fp32, reference, offload": Setup(products=BF16, checkpointing=True, offload=True, reference=True),
    "all weights, fp32, 8-bit optimizer": Setup(products=BF16, checkpointing=True, optimizer_bits=8),
    "all weights, bf16": Setup(bf16=True, products=BF16, checkpointing=True),
    "all weights, bf16, 8-bit optimizer": Setup(bf16=True, products=BF16, checkpointing=True, optimizer_bits=8),
    "LoRA, fp32 base": Setup(lora=True, reference=True, products=BF16, checkpointing=True),
    "LoRA, bf16 base": Setup(lora=True, reference=True, bf16=True, products=BF16, checkpointing=True),
    "LoRA, 4-bit base": Setup(lora=True, reference=True, bf16=True, quantized=True, products=BF16, checkpointing=True),
    "all weights, bf16, 2 ranks": Setup(bf16=True, products=BF16, checkpointing=True, ranks=2),
    "all weights, bf16, 8 ranks": Setup(bf16=True, products=BF16, checkpointing=True, ranks=8),
    "all weights, bf16, 8 ranks, reference": Setup(
        bf16=True, products=BF16, checkpointing=True, ranks=8, reference=True
    ),
}
DEVICES = (24, 80, 141)  # GB
USABLE = 0.9  # of a device: the rest is CUDA's own, and what its allocator cannot use
GB = 1e9
# Measured models, and what they do: prompts, samples of each, tokens of a prompt, new tokens.
SMALL = {
    "1.8M": (Shape(7168, 128, 4, 128, 128, 384, tied=True), (16, 8, 24, 40)),
    "22M": (Shape(8192, 384, 10, 384, 192, 1024, tied=True), (8, 4, 24, 40)),
    "58M": (Shape(8192, 640, 11, 640, 320, 1728, tied=False), (8, 4, 24, 40)),
    "135M": (Shape(49_152, 576, 30, 576, 192, 1536, tied=True), (4, 4, 60, 30)),
}
PLAIN, REFERENCE, ADAPTER = "algorithm.args.kl_coef=0", "algorithm.args.kl_coef=0.05", f"model.lora_rank={RANK}"
MEASURED = {
    "all weights": ((PLAIN,), Setup(device="cpu")),
    "all weights, reference": ((REFERENCE,), Setup(device="cpu", reference=True)),
    "all weights, gradient checkpointing": (
        (PLAIN, "backend.args.gradient_checkpointing=true"), Setup(device="cpu", checkpointing=True),
    ),
    "all weights, bf16": ((PLAIN, "backend.args.weights=bf16"), Setup(device="cpu", bf16=True, products=BF16)),
    "all weights, products in bf16": ((PLAIN, "backend.precision=bf16"), Setup(device="cpu", products=BF16)),
    "all weights, 8-bit optimizer": ((PLAIN, "backend.args.optimizer_bits=8"), Setup(device="cpu", optimizer_bits=8)),
    "LoRA": ((REFERENCE, ADAPTER), Setup(device="cpu", lora=True, reference=True)),
    "LoRA, bf16 base": (
        (REFERENCE, ADAPTER, "backend.args.weights=bf16"),
        Setup(device="cpu", lora=True, reference=True, bf16=True, products=BF16),
    ),
    "LoRA, 4-bit base": (
        (REFERENCE, ADAPTER, "backend.args.quantize=nf4"),
        Setup(device="cpu", lora=True, reference=True, quantized=True),
    ),
}  # fmt: skip
HEAD = 64


def table() -> str:
    """Return the table of what fits."""
    lines = [
        "| model | trained | stays | update | sampling | " + " | ".join(f"{size} GB" for size in DEVICES) + " |",
        "|---|---|--:|--:|--:|" + "---|" * len(DEVICES),
    ]
    for model, shape in MODELS.items():
        for name, setup in WAYS.items():
            parts = (sum(resident_of(shape, setup, RANK).values()), update_peak(shape, setup, WORK, RANK))
            sizes = [f"{size / GB:.1f}" for size in (*parts, sampling_peak(shape, setup, WORK, RANK))]
            fits = ["yes" if peak(shape, setup, WORK, RANK) <= USABLE * size * GB else "no" for size in DEVICES]
            lines.append(f"| {' | '.join((model, name, *sizes, *fits))} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return docs/scaling.md with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def measure(names: list[str]) -> None:
    """Print measured peaks beside the formula's: of all models, or of the one named first, in the ways named."""
    print("| model | trained | update, MB | measured | sampling, MB | measured | peak: measured / formula |")
    print("|---|---|--:|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as root:
        for model, (shape, asked) in SMALL.items():
            if names and names[0] != model:
                continue
            folder = Path(root) / model
            make(folder, shape)
            for name, (overrides, setup) in MEASURED.items():
                if names[1:] and name not in names[1:]:
                    continue
                work, found = work_of(*asked), measured(folder, overrides, asked)
                expected = update_peak(shape, setup, work, RANK), sampling_peak(shape, setup, work, RANK)
                sizes = (expected[0], found["update"], expected[1], found["sampling"])
                share = max(found.values()) / max(expected)
                print(
                    f"| {model} | {name} | {' | '.join(f'{size / 1e6:.0f}' for size in sizes)} | {share:.2f} |",
                    flush=True,
                )


def work_of(prompts: int, samples: int, prompt: int, new: int) -> Work:
    """Return what is computed at once: completions of all prompts are sampled, and half of them are a micro-batch."""
    rows = prompts // 2 * samples
    return Work(
        tokens=prompts // 2 * prompt + rows * new,
        attended=prompts // 2 * prompt + rows * (prompt + new),
        chosen=rows * new,
        rows=2 * rows,
        length=prompt + new,
    )


def make(folder: Path, shape: Shape) -> None:
    """Write a random model whose words are numbers."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    # The end is no number: it would be found inside others.
    words = {"<end>" if number == 1 else str(number): number for number in range(shape.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    made = transformers.LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.queries // HEAD, eos_token_id=1,
        num_key_value_heads=shape.keys // HEAD, tie_word_embeddings=shape.tied, bos_token_id=None,
    )  # fmt: skip
    transformers.LlamaForCausalLM(made).save_pretrained(folder)


def measured(folder: Path, overrides: Sequence[str], asked: tuple[int, ...]) -> dict[str, int]:
    """Train a model; return the most bytes that tensors held, by phase."""
    from held import Held, Widened

    most = dict[str, int]()
    with Widened(), Held() as held:

        def note(phase: str) -> None:
            most[phase], held.most = max(most.get(phase, 0), held.most), held.now

        train(folder, overrides, asked, 2, note)
    del most["loading"]
    return most


def train(
    folder: Path, overrides: Sequence[str], asked: tuple[int, ...], steps: int, note: Callable[[str], None]
) -> None:
    """Make some steps of GRPO; ``note`` is called at the end of each phase."""
    from dataclasses import replace

    import numpy as np

    from steadyrl.backends.torch.backend import TorchBackend
    from steadyrl.core import config, plugins
    from steadyrl.core.types import Problem, Sampling
    from steadyrl.loop.rollout.collect import collect
    from steadyrl.maths.batch import make_batch

    prompts, samples, length, new = asked
    settings = {
        "model": {"path": str(folder)},
        "backend": {
            "device": "cpu",
            "threads": 1,
            "args": {"micro_batch_tokens": prompts * samples * (length + new) // 2},
        },
        "algorithm": {"name": "grpo"},
        "rewards": {"length": 1.0},
        "rollout": {"samples_per_prompt": samples},
    }
    resolved = config.resolve(settings, overrides)
    algorithm = plugins.load("algorithm", "grpo").build(resolved.algorithm.args)
    backend, drawn = TorchBackend(resolved, algorithm), Sampling(max_new_tokens=new)
    for parameter in backend.model.parameters():  # out of the file that is mapped
        parameter.data = parameter.data.clone()
    generator = np.random.default_rng(0)
    note("loading")
    for step in range(steps):
        texts = [" ".join(map(str, generator.integers(2, 1000, length))) for _ in range(prompts)]
        groups = collect(backend, [Problem(text, text) for text in texts], samples, drawn, (0, step))
        note("sampling")
        groups = [
            replace(g, rollouts=tuple(replace(r, reward=float(n)) for n, r in enumerate(g.rollouts))) for g in groups
        ]
        batch = make_batch(groups, backend.tokenizer.pad_id)
        batch = replace(batch, old=backend.score(batch, drawn, algorithm.needs))
        batch = algorithm.prepare(batch, algorithm.state)
        note("scoring")
        backend.step(batch, Update(algorithm.loss, drawn, algorithm.needs, 1e-5, 1.0))
        note("update")


def main() -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case []:
            PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        case ["measure", *names]:
            measure(names)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
