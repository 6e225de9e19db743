"""One run of TRL's newest GRPOTrainer: <its python> bench/doctor/trl_grpo_run.py <case> <trainer_state.json> [live].

With "live" the doctor goes along and prints what it finds; that needs numpy, scipy and pydantic beside TRL.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer
from trl_cases import MODEL, PROMPTS_PER_STEP, RATE, SAMPLES, STEPS, Case, Scorer, case_of, prompts


def main() -> None:
    """Train, and save the trainer's own state."""
    case, path = case_of(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    scorer = Scorer(case)

    def reward(completions: list[str], **columns: Any) -> list[float]:
        return scorer(completions)

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=str(MODEL),
            reward_funcs=reward,
            args=config(case, folder),
            train_dataset=Dataset.from_dict({"prompt": prompts()}),
        )
        trainer.remove_callback(PrinterCallback)
        findings = watched(trainer) if sys.argv[3:] == ["live"] else tuple
        trainer.train()
        trainer.state.save_to_json(str(path))
        for finding in findings():
            print(finding.severity, finding.check, finding.cause, *finding.evidence, sep="; ")


def watched(trainer: GRPOTrainer) -> Callable[[], tuple[Any, ...]]:
    """Let the doctor measure on the trainer's batches; return how to ask for what it found."""
    from steadyrl.integrations.trl import DoctorCallback

    callback = DoctorCallback().watch(trainer)
    return lambda: callback.findings


def config(case: Case, folder: str) -> GRPOConfig:
    """Return the settings of a case: one batch of 8 prompts with 6 completions each a step."""
    settings: dict[str, Any] = {
        "learning_rate": RATE,
        "max_completion_length": 24,
        "per_device_train_batch_size": PROMPTS_PER_STEP * SAMPLES,
        "num_generations": SAMPLES,
        "num_iterations": 1,
        **case.settings,
    }
    return GRPOConfig(
        output_dir=folder,
        seed=case.seed,
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        lr_scheduler_type="constant",
        warmup_steps=3,
        max_steps=STEPS,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings,
    )


if __name__ == "__main__":
    main()
