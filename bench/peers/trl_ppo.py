"""Steps of TRL 0.11's PPOTrainer, timed: a JSON line per step.

Runs in its own environment (environments.py), in the folder bench: <its python> -m peers.trl_ppo base --steps 5

The loop is the one of its examples: generate, score, ``step``. Its defaults stay, but for what the workload sets and
the batch size of ``generate`` (4, which would make it slower). Gradients are not clipped: ``max_grad_norm`` of 0.11
uses up its list of parameters in the first step and clips nothing afterwards.
"""

from __future__ import annotations

import time
import warnings

import torch
from transformers import AutoTokenizer
from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer
from workloads import (
    EPOCHS,
    KL_COEF,
    LEARNING_RATE,
    VALUE_COEF,
    WARM_UP,
    System,
    Workload,
    arguments,
    distinct_words,
    report,
)

SYSTEM = System("trl-ppo", "trl")


def main() -> None:
    """Train for some steps under a stopwatch."""
    args = arguments(__doc__.splitlines()[0])
    work, steps = args.workload, args.steps
    warnings.simplefilter("ignore")  # of its own deprecation, mainly
    trainer = make_trainer(work)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": work.new_tokens}
    sampling |= {"pad_token_id": trainer.tokenizer.pad_token_id, "eos_token_id": trainer.tokenizer.eos_token_id}
    for number in range(WARM_UP + steps):
        tokens, seconds = one_step(trainer, work, sampling)
        if number >= WARM_UP:
            report(SYSTEM, work, torch.get_num_threads(), tokens, seconds)


def make_trainer(work: Workload) -> PPOTrainer:
    """Load the model, its reference and the trainer."""
    config = PPOConfig(
        batch_size=work.samples,
        mini_batch_size=work.samples,
        ppo_epochs=EPOCHS["ppo"],
        learning_rate=LEARNING_RATE,
        adap_kl_ctrl=False,
        init_kl_coef=KL_COEF,
        vf_coef=VALUE_COEF,
        accelerator_kwargs={"cpu": True},
    )
    model = AutoModelForCausalLMWithValueHead.from_pretrained(str(work.folder), torch_dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    tokenizer = AutoTokenizer.from_pretrained(str(work.folder))
    return PPOTrainer(config, model, tokenizer=tokenizer, optimizer=optimizer)


def one_step(trainer: PPOTrainer, work: Workload, sampling: dict[str, object]) -> tuple[int, dict[str, float]]:
    """Generate, score and train once; return the generated tokens and the seconds of the parts."""
    began = time.perf_counter()
    rows = [prompt for prompt in work.prompts for _ in range(work.group)]
    queries = [torch.tensor(ids) for ids in trainer.tokenizer(rows)["input_ids"]]
    responses = trainer.generate(queries, batch_size=work.samples, return_prompt=False, **sampling)
    texts = trainer.tokenizer.batch_decode(responses, skip_special_tokens=True)
    generated = time.perf_counter()
    rewards = [torch.tensor(reward) for reward in distinct_words(texts)]
    stats = trainer.step(queries, responses, rewards)
    ended = time.perf_counter()
    update = stats["time/ppo/optimize_step"] + stats["time/ppo/calc_stats"]
    parts = {
        "step": ended - began,
        "generate": generated - began,
        "score": ended - generated - update,
        "update": update,
    }
    return sum(len(ids) for ids in responses), parts


if __name__ == "__main__":
    main()
