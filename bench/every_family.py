"""Give steadyrl every model type of transformers that goes on with a text, as a tiny random model of it.

    python bench/every_family.py [TYPE ...]

The types are those that transformers lists as causal, and as models of images and text. Where these sizes make no tiny
model of a type, it is counted as not built. Every other one is sampled, scored, trained for a step, saved and resumed,
or refused in a line; then an adapter is trained on it and merged. Writes bench/results/every_family.md if no TYPE is
named. Exit code 0 if nothing else came of any of them, else 1. Give it one thread: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import model_families as families  # noqa: E402

from steadyrl.backends.torch.load.model import class_of  # noqa: E402
from steadyrl.core.errors import ConfigError, ModelError  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "every_family.md"
CAUSAL = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
IMAGES = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
LARGEST = 3e7  # parameters
SECONDS = 240  # for one type

# What configurations call their sizes, and what each is here.
SIZES = {
    **dict.fromkeys("hidden_size d_model n_embd embed_dim model_dim dim embedding_size image_size".split(), 32),
    **dict.fromkeys("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers".split(), 2),
    **dict.fromkeys("num_attention_heads n_head n_heads num_heads".split(), 4),
    **dict.fromkeys("encoder_attention_heads decoder_attention_heads linear_num_value_heads".split(), 4),
    **dict.fromkeys("num_key_value_heads num_kv_heads num_global_key_value_heads linear_num_key_heads".split(), 2),
    **dict.fromkeys("intermediate_size ffn_dim n_inner d_ff encoder_ffn_dim decoder_ffn_dim".split(), 48),
    **dict.fromkeys("max_position_embeddings n_positions n_ctx".split(), 64),
    **dict.fromkeys("vocab_size vocab_size_per_layer_input".split(), 60),
    **dict.fromkeys("moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size".split(), 16),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_k n_group".split(), 2),
    **dict.fromkeys("topk_group first_k_dense_replace mamba_n_groups".split(), 1),
    **dict.fromkeys("q_lora_rank kv_lora_rank".split(), 16),
    **dict.fromkeys("head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim sliding_window".split(), 8),
    **dict.fromkeys("linear_key_head_dim linear_value_head_dim patch_size hidden_size_per_layer_input".split(), 8),
    **dict.fromkeys("mamba_d_head mamba_d_state mamba_chunk_size mamba_n_heads state_size chunk_size".split(), 8),
    "mamba_d_ssm": 32,
    "global_head_dim": 16,
    "num_nextn_predict_layers": 0,
    **dict.fromkeys("initializer_range init_std".split(), 0.2),
}  # fmt: skip
ENDS = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
LAYERS = "layer_types", "mlp_layer_types", "layers_block_type"  # lists of one entry per layer
_ALL_KEYS = {"num_key_value_heads": 4}  # of attention that has as many
_EXPERTS = {"n_group": 1, "num_experts_per_tok": 2, "n_routed_experts": 4}
_BOS = {"bos_token_id": 0}
_PLAIN = {"rope_type": "default", "rope_theta": 1e4}
_SECTIONS = {"text_config": {"rope_parameters": {**_PLAIN, "mrope_section": [1, 1, 2]}}}
_HUNYUAN = {"rope_parameters": _PLAIN, "head_dim": 8}
_GEMMA4 = {
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "per_layer_config": None, "global_head_dim": 16,
}  # fmt: skip
_GEMMA3N = {
    "intermediate_size": 48, "num_hidden_layers": 5, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", *["sliding_attention", "full_attention"] * 2],
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0],
}  # fmt: skip
# What a type needs besides. None takes an entry out.
OTHERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "bailing_hybrid", "deepseek_v3", "deepseek_v32"), _ALL_KEYS),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "youtu"), _ALL_KEYS),
    **dict.fromkeys(("cwm", "modernbert-decoder"), _BOS),
    **dict.fromkeys(("glm46v", "glm4v", "glm_ocr", "glmga", "paddleocr_vl"), _SECTIONS),
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_vl"), _SECTIONS),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), _HUNYUAN),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA4),
    "bamba": {"attn_layer_indices": [1], "layer_types": None, "mamba_n_heads": 8},
    "deepseek_v2": {**_ALL_KEYS, **_EXPERTS, "topk_method": "greedy"},
    "dots1": {**_EXPERTS, "n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n": {"text_config": _GEMMA3N},
    "gemma3n_text": _GEMMA3N,
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_unified": {"text_config": _GEMMA4},
    "glm5_next": {"text_config": _ALL_KEYS, **_ALL_KEYS},
    "granite_docling": {"vision_config": {"out_hidden_size": 32}},
    "hunyuan_vl": {"text_config": _HUNYUAN},
    "inkling2": {"vision_config": {"text_hidden_size": 32}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "glm4v_moe": {"text_config": {**_SECTIONS["text_config"], "partial_rotary_factor": 1.0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "kimi_k25": {"text_config": _ALL_KEYS},
    "kimi_linear": {**_ALL_KEYS, "num_experts_per_token": 2, "num_expert_group": 1},
    "laguna": {"num_attention_heads_per_layer": [4, 4]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4_text": {"attn_scale": 0.1},
    "mamba2": {"head_dim": 16, "num_heads": 4, "n_groups": 1},
    "minicpm3": {**_ALL_KEYS, "dim_model_base": 32},
    "mllama": {"text_config": _BOS},
    "mistral4": {**_ALL_KEYS, "head_dim": 16},
    "ministral": {"head_dim": 8, "rope_parameters": _PLAIN},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip

# What is apart in transformers itself, tried without steadyrl.
KNOWN = {
    "nemotron_h": "one token at a time transformers' own forward is up to 1.5e-3 nats from its plain pass",
    "youtu": "transformers sets the row of the padding token to 0 when it loads a model",
}


def tiny(kind: str) -> Any:
    """Return a configuration of a model type with a few thousand weights."""
    settings = CONFIG_MAPPING[kind]().to_dict()
    _shrink(settings)
    _merge(settings, OTHERS.get(kind, {}))
    settings.pop("transformers_version", None)
    del settings["model_type"]
    return CONFIG_MAPPING[kind](**settings)


def _shrink(settings: dict[str, Any]) -> None:
    for name, value in list(settings.items()):
        if isinstance(value, dict) and "rope" not in name and "label" not in name:
            _shrink(value)
        elif name in SIZES and isinstance(value, int | float) and not isinstance(value, bool):
            settings[name] = SIZES[name]
        elif name in ENDS:
            settings[name] = ENDS[name]
        elif name in LAYERS and isinstance(value, list) and value:
            kinds = list(dict.fromkeys(value))
            settings[name] = (kinds * 2)[: max(2, len(kinds))]
            settings |= {count: len(settings[name]) for count in ("num_hidden_layers", "n_layer") if count in settings}


def _merge(settings: dict[str, Any], others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if value is None:
            settings.pop(name, None)
        elif isinstance(value, dict) and isinstance(settings.get(name), dict) and name != "rope_parameters":
            _merge(settings[name], value)
        else:
            settings[name] = value


def tried(kind: str, folder: Path) -> tuple[str, str]:
    """Return what came of a model type, and what is to be said of it."""
    try:
        settings = tiny(kind)
        with torch.device("meta"):
            size = sum(p.numel() for p in class_of(settings).from_config(settings).parameters())
        if size > LARGEST:
            return "not built", f"{size / 1e6:.0f}M weights"
        families.FAMILIES[kind] = lambda: tiny(kind)
        families.write_model(kind, folder)
    except Exception as error:  # whatever its configuration does not go together with
        return "not built", _line(error)
    try:
        backend, found = families.trial(folder)
    except ModelError as error:
        return "refused", str(error).replace(str(folder), "FOLDER")
    way = "fast decoder" if backend.describe()["decoder"] == "fast" else "own forward"
    wrong = _beyond(found, "")
    try:
        wrong += _beyond(families.trial_of_adapter(folder), "adapter: ")
        said = ""
    except (ModelError, ConfigError) as error:
        said = f"adapter: {error}".replace(str(folder), "FOLDER")
    if wrong and kind in KNOWN:
        return way, f"{', '.join(wrong)}: {KNOWN[kind]}"
    return ("wrong", f"{way}: {', '.join(wrong)}") if wrong else (way, said)


def _beyond(found: Mapping[str, float], of: str) -> list[str]:
    return [f"{of}{name} {value:.1e}" for name, value in found.items() if not value <= families.LIMITS[name]]


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}".replace("|", "/")


def _alone(kind: str, told: Any) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        try:
            told.send(tried(kind, Path(folder)))
        except Exception as error:  # a traceback is what nobody is to see
            told.send(("wrong", _line(error)))


def main() -> int:
    """Try the types that are named, or all."""
    named, made = sys.argv[1:], multiprocessing.get_context("fork")
    found: dict[str, tuple[str, str]] = {}
    for kind in named or sorted({*CAUSAL, *IMAGES} & set(CONFIG_MAPPING)):
        ours, theirs = made.Pipe(duplex=False)
        process = made.Process(target=_alone, args=(kind, theirs))
        process.start()
        found[kind] = ours.recv() if ours.poll(SECONDS) else ("wrong", f"nothing within {SECONDS} s")
        process.kill()
        process.join()
        print(json.dumps([kind, *found[kind]]), flush=True)
    if not named:
        RESULTS.write_text(_page(found), encoding="utf-8")
    return int(any(what == "wrong" for what, _ in found.values()))


def _page(found: Mapping[str, tuple[str, str]]) -> str:
    counts = {
        what: sum(each == what for each, _ in found.values()) for what in ("fast decoder", "own forward", "refused")
    }
    counts |= {what: sum(each == what for each, _ in found.values()) for what in ("wrong", "not built")}
    rows = [f"| {kind} | {what} | {said.replace('|', '/')} |" for kind, (what, said) in sorted(found.items())]
    return "\n".join(
        [
            "# Every model type of transformers that goes on with a text",
            "",
            f"`python bench/every_family.py` with transformers {transformers.__version__}, torch {torch.__version__}: "
            "random models of a few thousand weights, in float32 on a CPU.",
            "",
            f"{len(found)} types: " + ", ".join(f"{number} {what}" for what, number in counts.items()) + ".",
            "",
            "| model type | what came of it | what is said |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
