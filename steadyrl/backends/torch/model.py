"""Loading a Hugging Face causal model and its tokenizer: folder, hub name, or the base model that ships with us."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from steadyrl.backends.torch.tokenizer import HFTokenizer
from steadyrl.errors import ConfigError, ModelError
from steadyrl.plugins import require
from steadyrl.sections import ModelSection

log = logging.getLogger(__name__)

BASE_MODEL = Path(__file__).parents[2] / "assets" / "base-model"


def load_model(
    section: ModelSection, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Any, HFTokenizer]:
    """Load the model (in eval mode: dropout stays off throughout, as PPO's ratios need) and its tokenizer.

    Raises:
        ModelError: The folder is missing or incomplete, or nothing can be loaded from it.
    """
    transformers = require("transformers")
    transformers.utils.logging.disable_progress_bar()  # its bars would run through ours at every checkpoint
    path = str(BASE_MODEL) if section.path == "base" else section.path
    _check_folder(path)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path, use_safetensors=True, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"model.path = '{section.path}' cannot be loaded: {first}") from error
    if found["missing_keys"]:  # transformers would fill them with random numbers
        raise ModelError(
            f"model.path = '{section.path}' lacks weights: {', '.join(sorted(found['missing_keys'])[:3])}; expected a "
            "whole causal language model"
        )
    ends = _stated_ends(model)
    model = model.to(device).eval()
    if section.lora_rank:
        model = add_lora(model, section)
    return model, HFTokenizer(tokenizer, section.chat_template, ends)


def add_lora(model: Any, section: ModelSection) -> Any:
    """Wrap a model in a fresh LoRA adapter; its second matrix starts at zero, so that policy equals reference."""
    peft = require("peft")
    targets: str | list[str] = section.lora_targets
    if targets != "all-linear":
        targets = [name.strip() for name in section.lora_targets.split(",")]
    config = peft.LoraConfig(
        r=section.lora_rank, lora_alpha=section.lora_alpha, lora_dropout=0.0, target_modules=targets,
        task_type="CAUSAL_LM", bias="none",
    )  # fmt: skip
    try:
        return peft.get_peft_model(model, config).eval()
    except ValueError as error:
        raise ConfigError(f"model.lora_targets = '{section.lora_targets}': {error}") from error


def _stated_ends(model: Any) -> list[int]:
    """Return the end tokens of a model's generation config: a number, a list, or none."""
    stated = model.generation_config.eos_token_id
    if stated is None:
        return []
    return [int(id) for id in (stated if isinstance(stated, list) else [stated])]


def split_head(model: Any) -> tuple[nn.Module, Any]:
    """Return (the part that gives hidden states, the part that gives logits) of a causal model.

    Raises:
        ModelError: The model does more between the two than a linear layer; it cannot be scored token by token.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    body, head = inner.base_model, inner.get_output_embeddings()
    ids = torch.arange(4, device=inner.device)[None] % inner.config.get_text_config().vocab_size
    with torch.no_grad():
        whole = inner(input_ids=ids).logits
        parts = head(body(input_ids=ids).last_hidden_state)
    if whole.shape != parts.shape or not torch.allclose(whole, parts, rtol=1e-3, atol=1e-4):
        raise ModelError(
            f"the model type '{inner.config.model_type}' changes its logits after the output layer (a soft cap or a "
            "scale); expected hidden states, then one linear layer. Llama, Mistral, Qwen2, Qwen3, SmolLM and GPT-2 do"
        )
    return body, head


def _check_folder(path: str) -> None:
    folder = Path(path)
    if not folder.exists():
        if path.startswith((".", "/", "~")) or path.count("/") != 1:
            raise ModelError(
                f"there is no model folder '{path}'; give 'base', a folder in Hugging Face layout, or a hub name "
                "such as 'Qwen/Qwen2.5-0.5B-Instruct'"
            )
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # a line for every retry helps nobody
        log.warning("model.path = '%s' is no folder here; looking it up on the Hugging Face hub", path)
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"'{path}' is not a model folder: it has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"'{path}' holds no weights: expected model.safetensors (other formats are not read)")
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"'{path}/config.json' is not valid JSON: {error}") from error
