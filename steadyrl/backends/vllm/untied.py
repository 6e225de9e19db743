"""A head of its own for a model whose head shares the embedding's weights, as vLLM on a CPU needs it.

    python -m steadyrl.backends.vllm.untied MODEL COPY

vLLM on a CPU packs the weights of the head when it starts and does not pack a shared head again when it loads new ones
(0.32.0: vllm/model_executor/layers/utils.py, dispatch_cpu_unquantized_gemm, and model_loader/reload/layerwise.py). It
loads a head of its own. So it is started on a copy that has one, and every push of weights writes one too.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from steadyrl.core.errors import EngineError

HEAD = "lm_head.weight"
_EMBEDDING = "embed_tokens.weight"
_CONFIG, _INDEX, _WHOLE = "config.json", "model.safetensors.index.json", "model.safetensors"
_REST, _FILE = "without_head.safetensors", "lm_head.safetensors"


def is_tied(folder: Path) -> bool:
    """Return whether a model folder's head shares the embedding's weights."""
    return bool(json.loads((folder / _CONFIG).read_text(encoding="utf-8")).get("tie_word_embeddings"))


def add_head(folder: Path) -> None:
    """Write the embedding's weights a second time, as the head's, into a tied model folder.

    Raises:
        EngineError: The folder does not say which weights these are.
    """
    weight_map: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            weight_map |= dict.fromkeys(tensors.keys(), file.name)
    embeddings = [name for name in weight_map if name.endswith(_EMBEDDING)]
    if len(embeddings) != 1:
        raise EngineError(
            f"'{folder}' holds {len(embeddings)} tensors named *{_EMBEDDING}; expected one, to write it as {HEAD}: "
            "train an adapter (model.lora_rank), or sample with sampler.engine = 'own'"
        )
    with safe_open(folder / weight_map[embeddings[0]], "pt") as tensors:
        save_file({HEAD: tensors.get_tensor(embeddings[0])}, folder / _FILE, metadata={"format": "pt"})
    if (folder / _WHOLE).is_file():  # programs read it alone where it is there
        (folder / _WHOLE).rename(folder / _REST)
        weight_map = dict.fromkeys(weight_map, _REST)
    index = {"metadata": {}, "weight_map": weight_map | {HEAD: _FILE}}
    (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
    config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    config["tie_word_embeddings"] = False
    (folder / _CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def copy_untied(source: Path, target: Path) -> None:
    """Copy a tied model folder and give the copy a head of its own."""
    shutil.copytree(source, target)
    add_head(target)


if __name__ == "__main__":
    copy_untied(Path(sys.argv[1]), Path(sys.argv[2]))
