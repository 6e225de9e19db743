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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from safetensors import safe_open

from steadyrl.algorithms import ppo
from steadyrl.backends.torch.backend import TorchBackend
from steadyrl.backends.torch.load.model import class_of
from steadyrl.backends.torch.save.export import export_policy
from steadyrl.core import config
from steadyrl.core.errors import ModelError
from steadyrl.core.protocols import Update
from steadyrl.core.types import Batch, Problem, Sampling
from steadyrl.loop.rollout.collect import collect
from steadyrl.maths.batch import make_batch

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- table: scripts/model_families.py -->", "<!-- end of the table -->"
ALGORITHM = ppo.build(ppo.Settings(entropy_coef=0.02, whiten_advantages=False, clip_value=5.0))

PROBLEMS = [Problem(str(i), text) for i, text in enumerate(("the", "a red cat sees two small birds", "one dog"))]
SAMPLING = Sampling(max_new_tokens=6)
# What ``trial`` finds is at most so much: nats, numbers of names, or weights.
LIMITS = {
    "sampler and trainer": 1e-4,
    "trainer and transformers": 5e-5,
    "spread of log-probs, less than 0.03": 0.0,
    "policy and reference": 1e-5,
    "nats that a step moves, less than 0.01": 0.0,
    "reference after the step": 0.0,
    "names of weights": 0.0,
    "saved policy": 5e-5,
    "weights after resuming": 0.0,
}

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


def _with_images(name: str, text: str, *shapes: dict[str, Any], **more: Any) -> Callable[[], Any]:
    """Return a function that makes the configuration of a model of text and images."""
    sizes = {"image_size": 28, "patch_size": 14, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}

    def make() -> Any:
        whole = getattr(transformers, f"{name}Config")
        kind = whole().vision_config.model_type
        vision = {"model_type": kind, "hidden_size": 32, "intermediate_size": 48, **sizes}
        return whole(text_config=_of(text, *shapes, **more)().to_dict(), vision_config=vision, pad_token_id=0)

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
    "olmo": _of("Olmo", _ROTARY),
    "olmo2": _of("Olmo2", _ROTARY),
    "olmo3": _of("Olmo3", _ROTARY, sliding_window=8),
    "gemma2": _of("Gemma2", _ROTARY, _WINDOW, query_pre_attn_scalar=8, final_logit_softcapping=3.0),
    "gemma3_text": _of("Gemma3Text", _ROTARY, _WINDOW, query_pre_attn_scalar=8),
    "gemma4_text": _of(
        "Gemma4Text", _ROTARY, _WINDOW, num_hidden_layers=4, num_kv_shared_layers=2, global_head_dim=16,
        layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=60, final_logit_softcapping=3.0,
    ),
    "gemma3": _with_images("Gemma3", "Gemma3Text", _ROTARY, _WINDOW, query_pre_attn_scalar=8),
    "mistral3": _with_images("Mistral3", "Ministral3", _ROTARY, _WINDOW),
    "smollm3": _of("SmolLM3", _ROTARY),
    "starcoder2": _of("Starcoder2", _ROTARY),
    "stablelm": _of("StableLm", _ROTARY),
    "falcon": _of("Falcon", _SMALL),
    "opt": _of("OPT", _SMALL, ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32, init_std=0.2),
    "glm": _of("Glm", _ROTARY, head_dim=8),
    "glm4": _of("Glm4", _ROTARY, head_dim=8),
    "ministral": _of("Ministral", _ROTARY, _WINDOW),
    "ministral3": _of("Ministral3", _ROTARY, _WINDOW),
    "hunyuan_v1_dense": _of("HunYuanDenseV1", _ROTARY, head_dim=8),
    "ernie4_5": _of("Ernie4_5", _ROTARY, head_dim=8),
    "exaone4": _of("Exaone4", _ROTARY, _WINDOW),
    "seed_oss": _of("SeedOss", _ROTARY, head_dim=8),
    "nemotron": _of("Nemotron", _ROTARY, head_dim=8),
    "arcee": _of("Arcee", _ROTARY, head_dim=8),
    "cwm": _of("Cwm", _ROTARY, _WINDOW, bos_token_id=0, layer_types=["full_attention", "sliding_attention"]),
    "helium": _of("Helium", _ROTARY, head_dim=8),
    "internlm3": _of("InternLM3", _ROTARY, head_dim=8),
    "jais2": _of("Jais2", _ROTARY, head_dim=8),
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
    "laguna": _of("Laguna", _ROTARY, _EXPERTS, head_dim=8, num_attention_heads_per_layer=[4, 4]),
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
    "llama4_text": _of("Llama4Text", _ROTARY, head_dim=8, intermediate_size_mlp=48, num_local_experts=2),
    "rwkv": _of("Rwkv", hidden_size=32, num_hidden_layers=2),
    "recurrent_gemma": _of("RecurrentGemma", _SMALL, num_hidden_layers=3, attention_window_size=8),
}  # fmt: skip


def write_model(name: str, folder: Path) -> None:
    """Write a random model of a family, and a tokenizer, in Hugging Face layout."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = FAMILIES[name]()
        model = class_of(settings).from_config(settings).eval()
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
    return TorchBackend(settings_of(folder, *overrides), ALGORITHM)


def settings_of(folder: Path, *overrides: str) -> config.Config:
    """Return the config of a run that trains the model of a folder."""
    settings = {
        "model": {"path": str(folder)},
        "backend": {"device": "cpu", "threads": 1},
        "rewards": {"length": 1.0},
    }
    return config.resolve(settings, overrides)


def row(name: str, folder: Path) -> str:
    """Return the line of the table for a family whose model lies in a folder."""
    try:
        backend = open_model(folder)
    except ModelError as error:
        return f"| {name} | refused | {error} |"
    decoder = "fast decoder" if backend.describe()["decoder"] == "fast" else "own forward"
    return f"| {name} | {decoder} | |"


def batch_of(backend: TorchBackend, seed: int = 0) -> Batch:
    """Return a scored batch of what a backend draws, with rewards at random."""
    groups = collect(backend, PROBLEMS, 2, SAMPLING, (seed, 0))
    rewards = iter(np.random.default_rng(seed).normal(size=2 * len(PROBLEMS)))
    groups = [replace(g, rollouts=tuple(replace(r, reward=next(rewards)) for r in g.rollouts)) for g in groups]
    batch = make_batch(groups, backend.tokenizer.pad_id)
    old = backend.score(batch, SAMPLING, ALGORITHM.needs)
    return ALGORITHM.prepare(replace(batch, old=old), ALGORITHM.state)


def step(backend: TorchBackend, batch: Batch) -> None:
    """Make a large step."""
    backend.step(batch, Update(ALGORITHM.loss, SAMPLING, ALGORITHM.needs, 1e-2, 1e9))


def plain_logprobs(folder: Path, batch: Batch, row: int) -> np.ndarray:
    """Return log-probs of a row's completion by a plain forward pass of transformers, alone and unpadded."""
    made = class_of(transformers.AutoConfig.from_pretrained(folder))
    model = made.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(batch.tokens[row, : batch.lengths[row]].astype(np.int64))[None]
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].double().log_softmax(-1)
    found: np.ndarray = logits.gather(1, ids[0, 1:, None])[:, 0].numpy()
    return found[batch.completion_mask[row, 1 : batch.lengths[row]]]


def names_in(folder: Path) -> set[str]:
    """Return the names of the tensors in a folder's weights."""
    found: set[str] = set()
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as opened:
            found |= set(opened.keys())
    return found


def weights(backend: TorchBackend) -> dict[str, torch.Tensor]:
    """Return copies of what is trained."""
    return {name: p.detach().clone() for name, p in backend.trainable().items()}


def trial(folder: Path) -> tuple[TorchBackend, dict[str, float]]:
    """Sample, score, train, save and resume the model of a folder; return its backend, and what LIMITS bounds."""
    backend = open_model(folder)
    batch = batch_of(backend)
    mask, row = batch.completion_mask, int(np.argmax(batch.lengths))
    assert batch.old is not None and batch.old.kl_ref_exact is not None
    first = batch.old.logprobs
    found = {
        "sampler and trainer": np.abs(first[mask] - batch.sampling_logprobs[mask]).max(),
        "trainer and transformers": np.abs(first[row][mask[row]] - plain_logprobs(folder, batch, row)).max(),
        "spread of log-probs, less than 0.03": 0.03 - first[mask].std(),
        "policy and reference": np.abs(batch.old.kl_ref_exact[mask]).max(),
    }
    step(backend, batch)
    moved = backend.score(batch, SAMPLING, ALGORITHM.needs)
    saved = folder / "checkpoint"
    saved.mkdir()
    backend.save(saved)
    assert moved.ref_logprobs is not None and batch.old.ref_logprobs is not None
    found |= {
        "nats that a step moves, less than 0.01": 0.01 - np.abs(moved.logprobs - first).max(),
        "reference after the step": np.abs(moved.ref_logprobs - batch.old.ref_logprobs).max(),
        "names of weights": len(names_in(saved / "policy") ^ names_in(folder)),
        "saved policy": np.abs(moved.logprobs[row][mask[row]] - plain_logprobs(saved / "policy", batch, row)).max(),
    }
    resumed = open_model(folder, "run.seed=1")
    resumed.load(saved)
    for one in (backend, resumed):
        step(one, batch_of(one, seed=3))
    pairs = zip(weights(backend).values(), weights(resumed).values(), strict=True)
    found["weights after resuming"] = max(float((one - other).abs().max()) for one, other in pairs)
    return backend, {name: float(value) for name, value in found.items()}


def trial_of_adapter(folder: Path) -> dict[str, float]:
    """Train an adapter on the model of a folder for a step, and merge it; return what LIMITS bounds."""
    lora, saved, merged = ("model.lora_rank=2",), folder / "adapted", folder / "merged"
    backend = open_model(folder, *lora)
    batch = batch_of(backend)
    mask, row = batch.completion_mask, int(np.argmax(batch.lengths))
    assert batch.old is not None and batch.old.kl_ref_exact is not None
    first = batch.old.logprobs
    step(backend, batch)
    moved = backend.score(batch, SAMPLING, ALGORITHM.needs).logprobs
    for made in (saved, merged):
        made.mkdir()
    backend.save(saved)
    export_policy(settings_of(folder, *lora), saved, merged, merge=True)
    found = {
        "sampler and trainer": np.abs(first[mask] - batch.sampling_logprobs[mask]).max(),
        "policy and reference": np.abs(batch.old.kl_ref_exact[mask]).max(),
        "nats that a step moves, less than 0.01": 0.01 - np.abs(moved - first).max(),
        "saved policy": np.abs(moved[row][mask[row]] - plain_logprobs(merged, batch, row)).max(),
    }
    return {name: float(value) for name, value in found.items()}


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
