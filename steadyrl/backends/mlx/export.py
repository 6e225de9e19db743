"""The exporter of runs in MLX; how an adapter is merged is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.lora import LoRALinear

from steadyrl.backends.huggingface import portable
from steadyrl.backends.huggingface.export import write_policy
from steadyrl.backends.huggingface.tokenizer import HFTokenizer
from steadyrl.backends.mlx import state
from steadyrl.backends.mlx.network import Network
from steadyrl.core.config import Config
from steadyrl.core.sections import ModelSection


def export_policy(config: Config, checkpoint: Path, folder: Path, merge: bool) -> dict[str, Any]:
    """Write the policy of a checkpoint into an empty folder; see ``write_policy``."""
    with portable.writing(RuntimeError):
        return write_policy(config, checkpoint, folder, _write_merged if merge else None)


def _write_merged(section: ModelSection, policy: Path, folder: Path) -> HFTokenizer:
    """Add the adapter to the base model's weights, in float32 as they are multiplied in training."""
    net = Network(section, 0, None, values=False, recompute=False)
    net.adopt(state.load_adapter(policy, net.params))
    portable.check_probe(policy, net.measure, "fp32")
    model = net.loaded.net
    adapted = {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}
    model.update_modules(tree_unflatten([(name, module.fuse()) for name, module in adapted.items()]))
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    state.save_weights(folder, arrays, net.loaded.config, net.loaded.source)
    net.loaded.tokenizer.save(folder)
    return net.loaded.tokenizer
