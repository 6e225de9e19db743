"""The models of the benchmark, made once into bench/.models: python bench/models.py base 30m.

Completions must have the same length in every system, or the comparison would time luck. So the tokenizer of every
model names as its end-of-sequence token an id just past the vocabulary, which no sampler can draw. This costs no
system anything, unlike a minimum length, which transformers enforces by a pass over the logits at every token.
steadyrl refuses such a tokenizer. The folder "own" holds the same weights with the tokenizer as it was, for
ours_step.py, which takes the end tokens away itself.

smollm2 is the folder that `make smollm2` makes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from workloads import DEVICE, MODELS, SIZES

ROOT = Path(__file__).parent.parent
BASE = ROOT / "steadyrl" / "backends" / "base-model"
SOURCES = {"smollm2": ROOT / "models" / "smollm2"}  # all others start from BASE
NEVER = "<|never|>"
# Llama-shaped, with the base model's vocabulary of 7168 and tied embeddings; 29.4 M parameters.
SHAPES: dict[str, dict[str, int | str | bool]] = {
    "7m": {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "30m": {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    # Of Qwen2.5's sizes, with its vocabulary.
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 151_936,
    },
    "1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
    "7b": {
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    },
}


def main() -> None:
    """Make the models that are named and lacking."""
    names = sys.argv[1:] or sorted(SIZES.keys() - {"7b"})  # which takes 15 GB
    for name in names:
        if name not in SIZES:
            sys.exit(f"'{name}' is no model of the benchmark; expected some of {', '.join(SIZES)}")
        print(model_folder(name))


def model_folder(name: str) -> Path:
    """Return the folder of a model, made now if it is lacking or older than what it is made from."""
    folder, source = MODELS / name, SOURCES.get(name, BASE)
    if not (source / "config.json").is_file():
        sys.exit(f"'{source}' holds no model; make it with: make {name}")
    if folder.is_dir():
        made_at, sources = (folder / "config.json").stat().st_mtime, [Path(__file__), *source.iterdir()]
        if (folder / "own").is_dir() and all(file.stat().st_mtime <= made_at for file in sources):
            return folder
        shutil.rmtree(folder)
    MODELS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODELS) as work:
        made = Path(work) / name
        shutil.copytree(source, made)
        if name in SHAPES:
            _write_random(made, SHAPES[name])
        shutil.copytree(made, made / "own", copy_function=_link_weights)
        _move_eos(made)
        made.rename(folder)  # whole or not at all
    return folder


def _link_weights(source: str, target: str) -> None:
    """Copy a file, or link it where it is large and never changed."""
    if source.endswith(".safetensors"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _write_random(folder: Path, shape: dict[str, int | str | bool]) -> None:
    """Replace the weights of a copied model by random ones of another shape."""
    import torch  # asked for only where weights are made
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = AutoConfig.from_pretrained(folder, **shape)
    tokenizer = _read(folder / "tokenizer.json")
    words = tokenizer["model"]["vocab"]
    # Special tokens that the vocabulary lacks would be moved behind the words that follow.
    words |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    words |= {f"<{id}>": id for id in range(max(words.values()) + 1, config.vocab_size)}  # every id is a word
    _write(folder / "tokenizer.json", tokenizer)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)


def _move_eos(folder: Path) -> None:
    """Let the end-of-sequence token be an id past the vocabulary."""
    id = _read(folder / "config.json")["vocab_size"]
    tokenizer = _read(folder / "tokenizer.json")
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": id, "content": NEVER})
    _write(folder / "tokenizer.json", tokenizer)
    _write(folder / "tokenizer_config.json", {**_read(folder / "tokenizer_config.json"), "eos_token": NEVER})
    for name in ("config.json", "generation_config.json"):  # where transformers warns of an id past the vocabulary
        _write(folder / name, {**_read(folder / name), "eos_token_id": None})


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
