"""The exporter of runs in PyTorch; how an adapter is merged is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from steadyrl.backends.huggingface import portable
from steadyrl.backends.huggingface.export import write_policy
from steadyrl.backends.huggingface.tokenizer import HFTokenizer
from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.load.model import load_model
from steadyrl.backends.torch.save.state import load_policy
from steadyrl.core.config import Config
from steadyrl.core.sections import ModelSection


def export_policy(config: Config, checkpoint: Path, folder: Path, merge: bool) -> dict[str, Any]:
    """Write the policy of a checkpoint into an empty folder; see ``write_policy``."""
    with portable.writing():
        return write_policy(config, checkpoint, folder, _write_merged if merge else None)


@full_float32()
def _write_merged(section: ModelSection, policy: Path, folder: Path) -> HFTokenizer:
    """Add the adapter to the base model's weights, in float32 as they are multiplied in training."""
    model, tokenizer = load_model(section, torch.device("cpu"), torch.float32)
    load_policy(policy, model, lora=True)
    merged = model.merge_and_unload()
    merged.save_pretrained(folder)
    tokenizer.save(folder)
    return tokenizer
