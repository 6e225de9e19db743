"""Tiny random models of every family that was tried, and the table of docs/models.md: python scripts/model_families.py.

The table says what the backend itself answers when it is given each of them; tests/backends/torch/test_families.py
trains each, and holds the page to what it finds.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from steadyrl import config
from steadyrl.algorithms import ppo
from steadyrl.backends.torch.backend import TorchBackend
from steadyrl.errors import ModelError

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- table: scripts/model_families.py -->", "<!-- end of the table -->"
ALGORITHM = ppo.build(ppo.Settings(entropy_coef=0.02, whiten_advantages=False, clip_value=5.0))

TEXT = "the red cat sees a small dog and the old bird hears two or three big blue cats, one is new, not green."
# Weights far larger than usual: a wrong position, mask or name has to show.
_COMMON = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "initializer_range": 0.2}
_ROTARY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_DEEPSEEK = {
    "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
_LINEAR = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_MAMBA = {"mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_WINDOW = {"head_dim": 8, "sliding_window": 8}


def _of(name: str, *shapes: dict[str, Any], **more: Any) -> Callable[[], Any]:
    """Return a function that makes the configuration of a class of transformers."""

    def make() -> Any:
        settings = dict(_COMMON)
        for shape in (*shapes, more):
            settings |= shape
        return getattr(transformers, f"{name}Config")(**settings)

    return make


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _of("Llama", _ROTARY),
    "mistral": _of("Mistral", _ROTARY, _WINDOW),
    "qwen2": _of("Qwen2", _ROTARY),
    "qwen3": _of("Qwen3", _ROTARY, head_dim=8),
    "gemma": _of("Gemma", _ROTARY, head_dim=8),
    "gpt2": _of("GPT2", _GPT),
    "phi": _of("Phi", _ROTARY),
    "phi3": _of("Phi3", _ROTARY),
    "olmo2": _of("Olmo2", _ROTARY),
    "olmo3": _of("Olmo3", _ROTARY, sliding_window=8),
    "gemma2": _of("Gemma2", _ROTARY, _WINDOW, query_pre_attn_scalar=8),
    "gemma3_text": _of("Gemma3Text", _ROTARY, _WINDOW, query_pre_attn_scalar=8),
    "smollm3": _of("SmolLM3", _ROTARY),
    "starcoder2": _of("Starcoder2", _ROTARY),
    "stablelm": _of("StableLm", _ROTARY),
    "falcon": _of("Falcon", _SMALL),
    "opt": _of("OPT", _SMALL, ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32, init_std=0.2),
    "glm4": _of("Glm4", _ROTARY, head_dim=8),
    "ministral": _of("Ministral", _ROTARY, _WINDOW),
    "ernie4_5": _of("Ernie4_5", _ROTARY, head_dim=8),
    "exaone4": _of("Exaone4", _ROTARY, _WINDOW),
    "seed_oss": _of("SeedOss", _ROTARY, head_dim=8),
    "nemotron": _of("Nemotron", _ROTARY, head_dim=8),
    "granite": _of(
        "Granite", _ROTARY, logits_scaling=4.0, embedding_multiplier=2.0, residual_multiplier=0.5,
        attention_multiplier=0.2,
    ),
    "cohere2": _of("Cohere2", _ROTARY, _WINDOW, logit_scale=0.25),
    "gpt_neox": _of("GPTNeoX", _SMALL, intermediate_size=48, max_position_embeddings=64),
    "gptj": _of("GPTJ", _GPT, rotary_dim=8),
    "bloom": _of("Bloom", hidden_size=32, n_layer=2, n_head=4),
    "mpt": _of("Mpt", d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "qwen3_moe": _of("Qwen3Moe", _ROTARY, _EXPERTS, head_dim=8),
    "mixtral": _of("Mixtral", _ROTARY, num_local_experts=4),
    "olmoe": _of("Olmoe", _ROTARY, num_experts=4, num_experts_per_tok=2),
    "deepseek_v3": _of("DeepseekV3", _ROTARY, _DEEPSEEK),
    "glm4_moe": _of("Glm4Moe", _ROTARY, _EXPERTS, head_dim=8, n_routed_experts=4, n_group=1, topk_group=1),
    "gpt_oss": _of("GptOss", _ROTARY, _WINDOW, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_next": _of("Qwen3Next", _ROTARY, _EXPERTS, _LINEAR, head_dim=8, shared_expert_intermediate_size=16),
    "qwen3_5_text": _of("Qwen3_5Text", _ROTARY, _LINEAR, head_dim=8),
    "lfm2": _of("Lfm2", _ROTARY, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
    "falcon_h1": _of("FalconH1", _ROTARY, _MAMBA, head_dim=8, mamba_d_ssm=32, mamba_n_heads=4),
    "granitemoehybrid": _of(
        "GraniteMoeHybrid", _ROTARY, _MAMBA, layer_types=["mamba", "attention"], mamba_n_heads=8, num_local_experts=4,
        num_experts_per_tok=2, shared_intermediate_size=16,
    ),
    "jamba": _of("Jamba", _ROTARY, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False, num_experts=2),
    "mamba2": _of(
        "Mamba2", hidden_size=32, num_hidden_layers=2, state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8
    ),
    "mamba": _of("Mamba", hidden_size=32, num_hidden_layers=2, state_size=8),
    "rwkv": _of("Rwkv", hidden_size=32, num_hidden_layers=2),
    "recurrent_gemma": _of("RecurrentGemma", _SMALL, num_hidden_layers=3, attention_window_size=8),
    "llama4_text": _of("Llama4Text", _ROTARY, head_dim=8, intermediate_size_mlp=48, num_local_experts=2),
}  # fmt: skip


def write_model(name: str, folder: Path) -> None:
    """Write a random model of a family, and a tokenizer, in Hugging Face layout."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(FAMILIES[name]()).eval()
        for parameter in model.parameters():  # norms and biases start at 1 and 0, which hides them
            if parameter.dim() == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    special = ["<pad>", "<eos>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    inner.train_from_iterator([TEXT], trainer)
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")
    whole.save_pretrained(folder)


def open_model(folder: Path, *overrides: str) -> TorchBackend:
    """Return a backend of a model folder, on one thread of the processor."""
    settings = {
        "model": {"path": str(folder)},
        "backend": {"device": "cpu", "threads": 1},
        "rewards": {"length": 1.0},
        "update": {"old_logprobs": "recompute"},
    }
    return TorchBackend(config.resolve(settings, overrides), ALGORITHM)


def row(name: str, folder: Path) -> str:
    """Return the line of the table for a family whose model lies in a folder."""
    try:
        backend = open_model(folder)
    except ModelError as error:
        return f"| {name} | refused | {error} |"
    decoder = "fast decoder" if backend.describe()["decoder"] == "fast" else "own forward"
    return f"| {name} | {decoder} | |"


def main() -> None:
    """Write the table into the page."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers.utils.logging.set_verbosity_error()
    rows = ["| model type | decoded by | what is said |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as root:
        for name in FAMILIES:
            write_model(name, Path(root) / name)
            rows.append(row(name, Path(root) / name))
            print(rows[-1], flush=True)
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text("\n".join([before + BEGIN, "", *rows, "", END + after]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
