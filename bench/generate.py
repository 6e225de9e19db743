"""Generation alone, token ids to token ids, timed: python bench/generate.py steadyrl base --steps 5.

``transformers`` is its ``generate`` on the same model, prompts and sampling; a JSON line per call.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from ours_step import make_session
from transformers import AutoModelForCausalLM, AutoTokenizer
from workloads import WARM_UP, System, Workload, arguments, report

Generate = Callable[[int], int]  # number of the call -> generated tokens


def main() -> None:
    """Time calls."""
    makers = {"transformers": with_transformers, "steadyrl": with_steadyrl}
    args = arguments(__doc__.splitlines()[0], tuple(makers))
    system = System(f"{args.what}-generate", args.what)
    generate = makers[args.what](args.workload)
    for call in range(WARM_UP + args.steps):
        began = time.perf_counter()
        tokens = generate(call)
        seconds = time.perf_counter() - began
        if call >= WARM_UP:
            report(system, args.workload, torch.get_num_threads(), tokens, {"step": seconds, "generate": seconds})


def with_transformers(work: Workload) -> Generate:
    """Return sampling by ``generate`` with its defaults."""
    tokenizer = AutoTokenizer.from_pretrained(work.folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=torch.float32).eval()
    rows = [prompt for prompt in work.prompts for _ in range(work.group)]
    inputs = tokenizer(rows, return_tensors="pt", padding=True, return_token_type_ids=False)
    width = inputs["input_ids"].shape[1]

    def generate(call: int) -> int:
        torch.manual_seed(call)
        found = model.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=work.new_tokens,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        return int(found[:, width:].numel())

    return generate


def with_steadyrl(work: Workload) -> Generate:
    """Return sampling by the backend of a run; without a KL term, so that no reference is in memory."""
    session = make_session({"name": "grpo", "args": {"kl_coef": 0.0}}, work, steps=1)
    backend = session.backend
    rows = [backend.tokenizer.encode_prompt(prompt) for prompt in work.prompts for _ in range(work.group)]

    def generate(call: int) -> int:
        seeds = [call * len(rows) + row for row in range(len(rows))]
        return sum(len(completion.ids) for completion in backend.generate(rows, session.sampling, seeds))

    return generate


if __name__ == "__main__":
    main()
