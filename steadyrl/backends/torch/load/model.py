"""Loading a Hugging Face causal model and its tokenizer: folder, hub name, or the base model that ships with us."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steadyrl.backends.huggingface import portable
from steadyrl.backends.huggingface.folder import READING_ERRORS, beside, open_folder, read_tokenizer, reading
from steadyrl.backends.huggingface.tokenizer import HFTokenizer
from steadyrl.backends.torch.arithmetic import full_float32
from steadyrl.backends.torch.load.agree import agree, equal_logits
from steadyrl.backends.torch.load.quantized import in_four_bits, keep_layout
from steadyrl.backends.torch.read.head import Capped
from steadyrl.backends.torch.save import probe
from steadyrl.core.errors import ConfigError, ModelError
from steadyrl.core.plugins import require
from steadyrl.core.sections import ModelSection

log = logging.getLogger(__name__)

# Of these peft adapts neither, for kernels that take their weights past the module (its tuners_utils.py).
_KERNELS_PAST_MODULES = {"mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"}


@dataclass(frozen=True)
class SplitModel:
    """A causal model in two: what gives hidden states, and what makes logits of them."""

    body: nn.Module
    """Token ids to hidden states."""
    head: Any
    """Linear, hidden states to logits; Capped where the model caps them (Gemma)."""
    scale: float = 1.0
    """What the model multiplies the head's logits by (Granite, Cohere); 1 for most."""
    ours: bool = False
    """Whether its attention goes through ours; see ``fits``."""
    siblings: Sequence[Sequence[nn.Module]] = ()
    """Linear modules that read one and the same input, whose products are joined where tokens are sampled."""


def load_model(
    section: ModelSection, device: torch.device, dtype: torch.dtype = torch.float32, quantize: str = "none"
) -> tuple[Any, HFTokenizer]:
    """Load the model (in eval mode: dropout stays off throughout, as PPO's ratios need) and its tokenizer.

    Raises:
        ModelError: The folder is missing or incomplete, or nothing can be loaded from it.
    """
    path, config = open_folder(section)
    trusted, quantization = section.trust_remote_code, {} if quantize == "none" else in_four_bits(device, dtype)
    with reading(section.path):
        tokenizer = read_tokenizer(path, trusted)
        # Attention is torch's own where the model has it, else plain products; transformers chooses.
        model, loading_info = class_of(config).from_pretrained(
            path, config=config, use_safetensors=True, dtype=dtype, output_loading_info=True, trust_remote_code=trusted,
            **quantization,
        )  # fmt: skip
        ends, rows = model.generation_config.eos_token_id, model.get_input_embeddings().weight.shape[0]
        _freeze_others(model)
        _record_untied(model, section.path)
        extra_files = {} if text_part(model) is None else beside(path)
    if loading_info["missing_keys"]:  # transformers would fill them with random numbers
        raise ModelError(
            f"model.path = '{section.path}' lacks weights: {', '.join(sorted(loading_info['missing_keys'])[:3])}; "
            "expected a whole causal language model"
        )
    if unused := sorted(loading_info["unexpected_keys"]):
        log.warning(
            "model.path = '%s': %d weights are left out, for config.json has no place for them (%s); see that it is "
            "the config.json of these weights", section.path, len(unused), ", ".join(unused[:3]),
        )  # fmt: skip
    if quantize == "none":
        model = model.to(device).eval()
        portable.check_probe(Path(path), *probe.measure_of(model))
    else:  # it is on its device, and computes something else than what was saved
        keep_layout(model.eval())
    if section.lora_rank:
        model = add_lora(model, section)
    return model, HFTokenizer(tokenizer, section, ends, rows, extra_files)


def class_of(config: Any) -> Any:
    """Return the class of transformers that loads a model: of text, or of text and images where there is no other.

    There is no other either where transformers would not know what it has saved: a text model under a type of its own.
    """
    transformers = require("transformers")
    texts, images = transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    alone = type(config) in texts and type(config.get_text_config()) in texts
    return (
        transformers.AutoModelForImageTextToText
        if type(config) in images and not alone
        else transformers.AutoModelForCausalLM
    )


def text_part(model: Any) -> Any:
    """Return the part of a model of several kinds of input that reads text; None where there is but one kind."""
    return None if model.config.get_text_config() is model.config else model.get_decoder()


def _freeze_others(model: Any) -> None:
    """Train nothing of a model that no text passes through."""
    text, head = text_part(model), model.get_output_embeddings()
    if text is None or head is None:  # which is refused when it is looked for
        return
    read = {id(parameter) for part in (text, head) for parameter in part.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in read:
            parameter.requires_grad_(False)


def _record_untied(model: Any, path: str) -> None:
    """Let the configuration say what was loaded where it ties two embeddings whose weights differ.

    transformers keeps both, and other programs would read one of them in the place of both from what is saved.
    """
    table, head, config = model.get_input_embeddings(), model.get_output_embeddings(), model.config
    if getattr(head, "weight", table.weight) is table.weight:
        return
    stated = getattr(config.get_text_config(), "tie_word_embeddings", False)
    for part in (config, config.get_text_config()):
        if getattr(part, "tie_word_embeddings", False):
            part.tie_word_embeddings = False
    if stated:  # of models of images too, classes of transformers say so by default
        log.warning(
            "model.path = '%s': config.json says tie_word_embeddings, and the weights hold an output layer of other "
            "numbers than the embedding; both are used, and checkpoints say so", path,
        )  # fmt: skip


def add_lora(model: Any, section: ModelSection) -> Any:
    """Wrap a model in a fresh LoRA adapter; its second matrix starts at zero, so that policy equals reference.

    Raises:
        ConfigError: A target is none of the model's, or the adapter cannot be put on it or could not be merged into it.
    """
    peft, modules = require("peft"), dict(model.named_modules())
    table = model.get_input_embeddings().weight
    expected = f"expected 'all-linear', or some of {', '.join(_linear_names(modules, table))}"
    targets: str | list[str] = section.lora_targets
    if targets != "all-linear":
        targets = [name.strip() for name in section.lora_targets.split(",")]
    elif (text := text_part(model)) is not None:  # peft would take the numbers of other parts' layers for names of ours
        targets = _linear_names(dict(text.named_modules()), table)
    config = peft.LoraConfig(
        r=section.lora_rank, lora_alpha=section.lora_alpha, lora_dropout=0.0, target_modules=targets,
        exclude_modules=_no_targets(model, modules), task_type="CAUSAL_LM", bias="none",
    )  # fmt: skip
    try:
        with warnings.catch_warnings():  # of a rank that peft itself sets for fused experts, whether adapted or not
            warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
            # peft reads a property that transformers has renamed.
            warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
            warnings.filterwarnings("ignore", "Model has .tie_word_embeddings=True.", UserWarning)  # refused below
            adapted = peft.get_peft_model(model, config).eval()
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"model.lora_targets = '{section.lora_targets}': {reason} ({expected})") from error
    names = adapted.base_model.targeted_module_names
    requested, adapter_config = [] if section.lora_targets == "all-linear" else targets, adapted.peft_config["default"]
    if getattr(adapter_config, "target_parameters", None):  # peft has moved the names of fused experts there
        requested = [name for name in requested if name in adapter_config.target_modules]
    # peft does not tell that it found no module for one where it found others.
    if unknown := [name for name in requested if not any(f".{module}".endswith(f".{name}") for module in names)]:
        raise ConfigError(
            f"model.lora_targets = '{section.lora_targets}': the model has no module '{unknown[0]}'; {expected}"
        )
    for name in names:
        if isinstance(modules[name], nn.Embedding) or getattr(modules[name], "weight", None) is table:
            raise ConfigError(
                f"model.lora_targets = '{section.lora_targets}': '{name}' is an embedding or shares its weights with "
                "one; expected linear layers with weights of their own; leave it out, or set 'all-linear'"
            )
    return adapted


def _no_targets(model: Any, modules: dict[str, nn.Module]) -> str | None:
    """Return a pattern of the names of modules that get no adapter, or None where there are none.

    These are modules that no text passes through, those that peft refuses to adapt, and linear layers that give
    something else than a product, as routers of experts do (Llama 4).
    """
    patterns, text = [], text_part(model)
    if text is not None:
        patterns.append(rf"(?!{re.escape(next(name for name, module in modules.items() if module is text))}\.).*")
    if model.config.model_type in _KERNELS_PAST_MODULES:
        patterns.append(r".*\.(?:out_proj|conv1d)")
    odd = {name.rpartition(".")[2] for name, module in modules.items() if not _multiplies(module)}
    patterns += [rf".*\.{re.escape(name)}" for name in sorted(odd)]
    return "|".join(patterns) or None


@full_float32()
def _multiplies(module: nn.Module) -> bool:
    """Return False for what transformers has made of a linear layer if it is none any more."""
    if not isinstance(module, nn.Linear) or not type(module).__module__.startswith("transformers.models."):
        return True
    x = torch.ones(2, module.in_features, dtype=module.weight.dtype, device=module.weight.device)  # [2, in]
    try:
        with torch.no_grad():
            y: Any = module(x)
    except READING_ERRORS:
        return False
    return isinstance(y, torch.Tensor) and torch.allclose(y, nn.functional.linear(x, module.weight, module.bias))


def _linear_names(modules: dict[str, nn.Module], table: torch.Tensor) -> list[str]:
    """Return the last parts of the names of a model's linear layers, less a head that is the input embedding."""
    kinds = (nn.Linear, require("transformers").Conv1D)
    return sorted(
        {name.rpartition(".")[2] for name, m in modules.items() if isinstance(m, kinds) and m.weight is not table}
    )


def _body(inner: Any) -> Any:
    """Return the part of a causal model that ends in hidden states, or None where transformers gives none."""
    if (text := text_part(inner)) is not None:
        return text
    if inner.base_model is not inner:
        return inner.base_model
    # transformers looks for it by a name that it does not have here (Llama 4)
    return next((part for part in inner.children() if isinstance(part, require("transformers").PreTrainedModel)), None)


@full_float32()
def split_head(model: Any) -> SplitModel:
    """Return the part that gives hidden states and the part that gives logits of a causal model.

    Raises:
        ModelError: The model does more between the two than a linear layer; it cannot be scored token by token.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    body, head, config = _body(inner), inner.get_output_embeddings(), inner.config.get_text_config()
    kind = inner.config.model_type
    if body is None or head is None:
        raise ModelError(
            f"transformers gives no part of the model type '{kind}' that ends in hidden states, or none that makes "
            "logits of them; expected both, as nearly all families have (see docs/models.md)"
        )
    ids = torch.arange(4, device=inner.device)[None] % config.vocab_size  # [1, 4]
    try:
        with torch.no_grad():
            model_logits = inner(input_ids=ids, use_cache=False).logits.float()
            begun = inner(input_ids=ids[:, :-1], use_cache=False).logits.float()
            head_logits = head(body(input_ids=ids, use_cache=False).last_hidden_state).float()
    except READING_ERRORS as error:
        raise ModelError(
            f"the model type '{kind}' cannot be read as hidden states and one linear layer: {str(error)[:200]}"
        ) from error
    causal, apart = agree(begun, model_logits[:, :-1], inner.dtype)
    if not causal:
        raise ModelError(
            f"the model type '{kind}' lets tokens see later ones, as encoders do: log-probs with and without a later "
            f"token are {apart}; expected a causal language model"
        )
    scale = 1.0
    if cap := getattr(config, "final_logit_softcapping", None):
        head = Capped(head, cap)
        head_logits = head.bend(head_logits)
    elif (
        head_logits.shape == model_logits.shape
        and getattr(head, "bias", None) is None
        and not equal_logits(head_logits, model_logits)[0]
    ):
        scale = float((model_logits * head_logits).sum() / (head_logits * head_logits).sum())
    # Where the model's own tanh is rounded it is as near as another way through it.
    near, apart = (
        agree(head_logits, model_logits, inner.dtype) if cap else equal_logits(scale * head_logits, model_logits)
    )
    if not near:
        raise ModelError(
            f"the model type '{kind}' changes its logits after the output layer, and not by a constant or a cap that "
            f"config.json names: the layer's logits and the model's are {apart}; expected hidden states, then one "
            "linear layer, as nearly all families have (see docs/models.md)"
        )
    return SplitModel(body, head, scale)
