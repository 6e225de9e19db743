"""Steps of TRL's GRPOTrainer with transformers generation, timed: a JSON line per step.

Runs in its own environment (environments.py), in the folder bench: <its python> -m peers.trl_grpo base --steps 5

TRL's defaults stay, but for what the workload sets, and for two that would slow it down here: gradient checkpointing,
which it switches on, and dataloader workers' pinned memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workloads import (
    DEVICE,
    EPOCHS,
    KL_COEF,
    LEARNING_RATE,
    LORA,
    PRECISION,
    WARM_UP,
    System,
    Workload,
    arguments,
    distinct_words,
    now,
    report,
)

SYSTEM = System("trl-grpo", "trl")
# Methods of GRPOTrainer in 1.16: the first calls the second.
ROLLOUT_AND_SCORE, GENERATE = "_generate_and_score_completions", "_generate"


def main() -> None:
    """Train for some steps under a stopwatch."""
    args = arguments(__doc__.splitlines()[0])
    work, steps = args.workload, args.steps
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=str(work.folder),
            reward_funcs=distinct_words,
            args=config(work, WARM_UP + steps, folder),
            # As many rows as the steps use: the end of an epoch would make a new dataloader within a step.
            train_dataset=Dataset.from_dict({"prompt": list(work.prompts) * (WARM_UP + steps)}),
            peft_config=adapter(),
        )
        trainer.remove_callback(PrinterCallback)  # it prints between our lines
        trainer.add_callback(Stopwatch(trainer, work))
        trainer.train()


def adapter() -> Any:
    """Return the settings of the adapter, None where all weights are trained."""
    if not LORA:
        return None
    from peft import LoraConfig  # asked for only where an adapter is trained

    return LoraConfig(r=LORA, lora_alpha=LORA, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def config(work: Workload, steps: int, folder: str) -> GRPOConfig:
    """Return the settings that make the workload."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=DEVICE == "cpu",
        bf16=PRECISION == "bf16",
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=work.samples,
        num_generations=work.group,
        num_iterations=EPOCHS["grpo"],
        max_completion_length=work.new_tokens,
        temperature=1.0,
        beta=KL_COEF,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=steps,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class Stopwatch(TrainerCallback):
    """Times whole steps, from the end of one to the end of the next, and the calls within them."""

    def __init__(self, trainer: GRPOTrainer, work: Workload):
        self._work, self._steps = work, 0
        self._seconds = {ROLLOUT_AND_SCORE: 0.0, GENERATE: 0.0}
        self._tokens = 0
        for name in self._seconds:
            setattr(trainer, name, self._timed(name, getattr(trainer, name)))

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._began = now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        ended = now()
        step, scored, generated = ended - self._began, self._seconds[ROLLOUT_AND_SCORE], self._seconds[GENERATE]
        self._steps += 1
        if self._steps > WARM_UP:
            parts = {"step": step, "generate": generated, "score": scored - generated, "update": step - scored}
            report(SYSTEM, self._work, torch.get_num_threads(), self._tokens, parts)
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._began = now()

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = now()
            found = method(*args)
            self._seconds[name] += now() - began
            if name == GENERATE:
                self._tokens = sum(len(ids) for ids in found[1])  # prompt ids, completion ids, ...
            return found

        return timed


if __name__ == "__main__":
    main()
