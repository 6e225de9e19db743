"""Loading a Hugging Face folder, or one quantised by MLX, into mlx-lm's model of its family.

Only families whose log-probs and gradients are tested against transformers are read: mlx-lm reads many more, and some
of them silently wrong (see backends/mlx.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import load_model as load_weights

from steadyrl.backends.huggingface.folder import context_length, open_folder, read_tokenizer, reading
from steadyrl.backends.huggingface.portable import older_spelling
from steadyrl.backends.huggingface.tokenizer import HFTokenizer
from steadyrl.backends.mlx.likelihood import to_vocabulary
from steadyrl.core import plugins
from steadyrl.core.errors import ModelError
from steadyrl.core.sections import ModelSection

# Model types of transformers with a parity test in tests/backends/mlx/test_model.py.
FAMILIES = ("llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3")
_ROPES = ("default", "linear", "llama3", "yarn")  # kinds of positions with such a test
_READ = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")  # of a model on the hub


@dataclass(frozen=True)
class Loaded:
    """A model and what is known of it."""

    net: nn.Module  # of mlx-lm; ``net.model`` ends in hidden states
    head: nn.Module  # hidden states to logits: a module of ``net``, called through ``logits``
    logits: Callable[[mx.array], mx.array]  # hidden states [N, H] to logits [N, V], in the type of the hidden states
    config: Any  # of transformers
    tokenizer: HFTokenizer
    context: int | None  # tokens that positions and attention reach
    width: int  # H
    source: Path  # the folder that it was read from
    quantised: bool  # whether its matrices hold a few bits per number


def load_model(section: ModelSection, dtype: mx.Dtype) -> Loaded:
    """Load a model and its tokenizer, with weights kept in a type; what is quantised stays so.

    Raises:
        ModelError: The folder is missing or damaged, or its family is not one that is proved equal to transformers.
    """
    # MLX's quantised folders say so twice: "quantization" and, for transformers, "quantization_config".
    name, config = open_folder(section)
    _check_family(config, section.path)
    with reading(section.path):
        source = Path(name)
        if not source.is_dir():  # on the hub
            source = Path(plugins.require("huggingface_hub").snapshot_download(name, allow_patterns=list(_READ)))
        tokenizer = read_tokenizer(str(source))
        net, _ = load_weights(source, model_config=older_spelling(getattr(config, "rope_parameters", None)))
        file = source / "generation_config.json"
        ends = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        ends = getattr(config, "eos_token_id", None) if ends is None else ends
    net.update(tree_map(lambda x: x.astype(dtype) if mx.issubdtype(x.dtype, mx.floating) else x, net.parameters()))
    mx.eval(net.parameters())
    tied = "lm_head" not in net
    head = net.model.embed_tokens if tied else net.lm_head
    return Loaded(
        net=net,
        head=head,
        logits=partial(_logits, head, tied),
        config=config,
        tokenizer=HFTokenizer(tokenizer, section, ends, net.model.embed_tokens.weight.shape[0]),
        context=_max_tokens(config),
        width=config.hidden_size,
        source=source,
        quantised=any(name.endswith(".scales") for name, _ in tree_flatten(net.parameters())),
    )


def _logits(head: nn.Module, tied: bool, hidden: mx.array) -> mx.array:
    unquantized = isinstance(head, nn.Linear | nn.Embedding)  # not quantised; heads of the families have no bias
    product: Any = to_vocabulary if unquantized else head.as_linear if tied else head
    logits: mx.array = product(hidden, head.weight) if unquantized else product(hidden)
    return logits


def _check_family(config: Any, path: str) -> None:
    """Refuse what mlx-lm does not know, and what it would silently compute in another way than transformers."""
    kind, rope = config.model_type, getattr(config, "rope_parameters", None) or {}
    if kind not in FAMILIES:
        raise ModelError(
            f"model.path = '{path}' is of the type '{kind}', which is not proved equal in MLX and PyTorch; expected "
            f"one of {', '.join(FAMILIES)}, or set backend.name = 'torch'"
        )
    lacking = []
    if config.hidden_act != "silu":
        lacking.append(f"hidden_act = '{config.hidden_act}', expected 'silu'")
    if rope.get("rope_type", "default") not in _ROPES:
        lacking.append(f"rope_type = '{rope.get('rope_type')}', expected one of {', '.join(_ROPES)}")
    if (factor := rope.get("attention_factor")) is not None:
        lacking.append(f"attention_factor = {factor} of the positions, expected none")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        lacking.append(f"partial_rotary_factor = {rope['partial_rotary_factor']}, expected 1")
    if lacking:
        raise ModelError(
            f"model.path = '{path}': MLX would compute '{kind}' in another way than PyTorch with "
            f"{'; '.join(lacking)}; set backend.name = 'torch'"
        )


def _max_tokens(config: Any) -> int | None:
    # mlx-lm has no windows of attention: beyond one it would compute in another way than transformers.
    context, window = context_length(config), getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return context
    return min(context or window, int(window))
