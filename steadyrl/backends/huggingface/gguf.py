"""Writes a model folder of the Llama, Qwen2 and Qwen3 families as one GGUF file, which llama.cpp and Ollama read.

The tensors keep the precision of the folder, but for vectors, which llama.cpp wants in float32. Other families, and
tokenizers that llama.cpp would split differently, are refused: its own convert_hf_to_gguf.py knows more of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.core.errors import ModelError
from steadyrl.core.plugins import require

SCRIPT = "convert_hf_to_gguf.py of llama.cpp (https://github.com/ggml-org/llama.cpp)"
# model_type of config.json -> llama.cpp's name; "llama" turns pairs of neighbouring numbers, the others halves.
FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
# How a text is split before its bytes are merged -> llama.cpp's name for that.
GPT2 = "gpt-2"
SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+": "qwen2",
}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # kinds of tokens in a GGUF file
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def write_gguf(folder: Path, file: Path, name: str) -> None:
    """Write the weights, the tokenizer and the chat template of a folder into a GGUF file.

    Raises:
        ModelError: The model, its tokenizer, or the precision of a weight is none that can be written.
        MissingExtraError: The package gguf is not installed.
    """
    gguf = require("gguf")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    family = FAMILIES.get(config.get("model_type", ""))
    scaling = (config.get("rope_parameters") or config.get("rope_scaling") or {}).get("rope_type", "default")
    if family is None or scaling != "default" or config.get("num_local_experts"):
        raise ModelError(
            f"'{folder}' is a model of the type '{config.get('model_type')}' with positions of the kind '{scaling}'; "
            f"only {', '.join(FAMILIES)} with plain positions are written as GGUF here; convert it with {SCRIPT}"
        )
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    split = _pre_tokenizer_name(folder, tokenizer)
    writer = gguf.GGUFWriter(file, family)
    writer.add_name(name)
    _add_shape(writer, config)
    _add_tokenizer(gguf, writer, folder, tokenizer, split, config["vocab_size"])
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config["num_hidden_layers"])
    heads = {"q": config["num_attention_heads"], "k": _kv_heads(config)}
    for source, dtype, values in _tensors(folder):
        if source.endswith("rotary_emb.inv_freq"):
            continue
        target = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ModelError(
                f"'{folder}' has a weight '{source}' that llama.cpp has no name for; convert with {SCRIPT}"
            )
        projection = source.split(".")[-2].removesuffix("_proj")
        if family == "llama" and projection in heads:
            values = in_pairs(values, heads[projection])
        if values.ndim == 1:  # norms and biases
            exact = (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values.astype(np.float32)
            writer.add_tensor(target, exact)
        elif dtype == "BF16":
            writer.add_tensor(target, values.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(target, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a projection from halves that rotate together, as in Hugging Face, to neighbouring pairs.

    Args:
        values: [heads * size, ...].
        heads: Of queries, or of keys.
    """
    rows = values.shape[0]
    paired = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(paired.reshape(values.shape))


def _kv_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def _add_shape(writer: Any, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(_kv_heads(config))
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(float(rope.get("rope_theta", 10000.0)))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))


def _pre_tokenizer_name(folder: Path, tokenizer: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for how a tokenizer splits a text."""
    steps = tokenizer.get("pre_tokenizer") or {}
    kinds = [step.get("type") for step in steps.get("pretokenizers", [steps])]
    last = steps.get("pretokenizers", [steps])[-1]
    if tokenizer["model"].get("type") == "BPE" and not tokenizer["model"].get("byte_fallback"):
        if kinds == ["ByteLevel"] and last.get("use_regex", True):
            return GPT2
        if kinds == ["Digits", "ByteLevel"] and steps["pretokenizers"][0].get("individual_digits"):
            return "smollm"
        if kinds == ["Split", "ByteLevel"]:
            pattern = steps["pretokenizers"][0]["pattern"].get("Regex", "")
            if pattern in SPLITS:
                return SPLITS[pattern]
    raise ModelError(
        f"the tokenizer of '{folder}' splits texts in a way that llama.cpp is not known to have, so that prompts would "
        f"get other tokens; expected byte-level BPE as of GPT-2, SmolLM, Llama 3 or Qwen2; try {SCRIPT}"
    )


def _add_tokenizer(
    gguf: Any, writer: Any, folder: Path, tokenizer: Mapping[str, Any], split: str, vocabulary: int
) -> None:
    texts = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    kinds = dict.fromkeys(texts, NORMAL)
    for added in tokenizer.get("added_tokens", ()):
        texts[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in range(vocabulary)])
    writer.add_token_types([kinds.get(number, UNUSED) for number in range(vocabulary)])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    loaded = require("transformers").AutoTokenizer.from_pretrained(folder)
    for kind in ("bos", "eos", "unk", "pad"):
        if (number := getattr(loaded, f"{kind}_token_id")) is not None:
            getattr(writer, f"add_{kind}_token_id")(number)
    begins = loaded("a").input_ids[:1]
    writer.add_add_bos_token(bool(begins) and begins[0] == loaded.bos_token_id)
    if loaded.chat_template:
        writer.add_chat_template(loaded.chat_template)


def _tensors(folder: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield name, dtype and values of every weight; bfloat16 as the 16 bits that it is."""
    for file in sorted(folder.glob("*.safetensors")):
        data = np.memmap(file, np.uint8, mode="r")
        length = int(data[:8].view("<u8")[0])
        header = json.loads(bytes(data[8 : 8 + length]))
        for name, info in header.items():
            if name == "__metadata__":
                continue
            if info["dtype"] not in DTYPES:
                raise ModelError(f"the weight '{name}' of '{file}' is {info['dtype']}; expected {', '.join(DTYPES)}")
            begin, end = (8 + length + offset for offset in info["data_offsets"])
            yield name, info["dtype"], np.array(data[begin:end]).view(DTYPES[info["dtype"]]).reshape(info["shape"])
