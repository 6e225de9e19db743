"""One run of TRL 0.11's PPOTrainer: <its python> bench/doctor/trl_ppo_run.py <case> <log.jsonl>."""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer
from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer, set_seed
from trl_cases import MODEL, PROMPTS_PER_STEP, RATE, SAMPLES, STEPS, Case, Scorer, case_of, prompts


def main() -> None:
    """Train, and write what the trainer gives to its tracker, a line for every step."""
    case, path = case_of(sys.argv[1]), Path(sys.argv[2])
    warnings.simplefilter("ignore")  # of its own deprecation, mainly
    torch.set_num_threads(1)
    set_seed(case.seed)
    trainer, scorer, chosen = make_trainer(case), Scorer(case), random.Random(case.seed)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 24, **case.sampling}
    tokens = {"pad_token_id": trainer.tokenizer.pad_token_id, "eos_token_id": trainer.tokenizer.eos_token_id}
    lines: list[str] = []

    def log(values: Mapping[str, Any], step: int | None = None) -> None:
        lines.append(json.dumps({"step": len(lines), **scalars(values)}) + "\n")

    trainer.accelerator.log = log
    for _ in range(STEPS):
        texts = chosen.sample(prompts(), PROMPTS_PER_STEP * SAMPLES)
        queries = [torch.tensor(ids) for ids in trainer.tokenizer(texts)["input_ids"]]
        responses = trainer.generate(queries, batch_size=len(queries), return_prompt=False, **sampling, **tokens)
        written = trainer.tokenizer.batch_decode(responses, skip_special_tokens=True)
        rewards = [torch.tensor(reward) for reward in scorer(written)]
        stats = trainer.step(queries, responses, rewards)
        trainer.log_stats(stats, {"query": texts, "response": written}, rewards)
    path.write_text("".join(lines), encoding="utf-8")


def make_trainer(case: Case) -> PPOTrainer:
    """Load the model, its reference and the trainer."""
    settings: dict[str, Any] = {
        "learning_rate": RATE,
        "ppo_epochs": 2,
        "adap_kl_ctrl": False,
        "init_kl_coef": 0.02,
        **case.settings,
    }
    config = PPOConfig(
        seed=case.seed,
        batch_size=PROMPTS_PER_STEP * SAMPLES,
        mini_batch_size=PROMPTS_PER_STEP * SAMPLES // 2,
        vf_coef=0.1,
        accelerator_kwargs={"cpu": True},
        **settings,
    )
    model = AutoModelForCausalLMWithValueHead.from_pretrained(str(MODEL), torch_dtype=torch.float32)
    return PPOTrainer(config, model, tokenizer=AutoTokenizer.from_pretrained(str(MODEL)))


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among what was logged; histograms are left out, as a tracker's table of scalars does."""
    found = {}
    for name, value in values.items():
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.size == 1 and np.issubdtype(array.dtype, np.number):
            found[name] = float(f"{float(array.reshape(())):.6g}")
    return found


if __name__ == "__main__":
    main()
