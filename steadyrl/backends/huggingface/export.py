"""Writes the policy of a checkpoint as a plain Hugging Face folder: whole weights under the hub's names, or an adapter.

What is written loads without steadyrl: by transformers, by peft, and by whatever serves such folders. The weights have
the precision that the checkpoint has. Checkpoints of PyTorch and of MLX have the same files, so that only merging an
adapter, in float32, needs a framework.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steadyrl.backends.huggingface.folder import BASE_MODEL, INDEX, check_files, files_of, open_folder, reading
from steadyrl.backends.huggingface.portable import POLICY, check_readable, damaged
from steadyrl.backends.huggingface.tokenizer import HFTokenizer
from steadyrl.core.config import Config
from steadyrl.core.errors import ModelError
from steadyrl.core.plugins import require
from steadyrl.core.rundir import parse_json
from steadyrl.core.sections import ModelSection, SamplingSection

# Writes whole weights and the tokenizer of (a model, its adapter's folder, where to write).
Merge = Callable[[ModelSection, Path, Path], HFTokenizer]


def write_policy(config: Config, checkpoint: Path, folder: Path, merge: Merge | None) -> dict[str, Any]:
    """Write the policy of a checkpoint into an empty folder; ``merge`` writes whole weights for an adapter.

    Returns:
        What was written: ``kind`` ("weights" or "adapter"), ``base`` (folder or hub name of the model that was trained
        from), ``base_folder`` (where that is here, None if it was looked up on the hub), ``chat`` (prompts went through
        the chat template), ``messages_before`` every prompt, ``template_args``, ``max_new_tokens`` of an answer,
        ``end_tokens`` (id and text of each).

    Raises:
        CheckpointError: The checkpoint is damaged.
        ModelError: The base model of an adapter is not there, or cannot be loaded or merged.
        OSError: The folder cannot be written.
    """
    section, policy = config.model, checkpoint / POLICY
    for name in ["adapter_model.safetensors"] if section.lora_rank else _weights(policy):
        check_readable(policy / name)
    base = str(BASE_MODEL) if section.path == "base" else section.path
    if section.lora_rank:
        check_files(base)
    merging = merge if section.lora_rank else None
    if merging is not None:
        if getattr(open_folder(section)[1], "quantization_config", None):
            raise ModelError(
                f"model.path = '{section.path}' holds quantised weights, which no adapter can be merged into; leave "
                "out --merge, and serve the adapter beside its model"
            )
        tokenizer = merging(section, policy, folder)
    else:
        _read_object(policy / ("adapter_config.json" if section.lora_rank else "config.json"))
        # Whole weights hold all of their model; it need not be there any more.
        tokenizer = _write_copy(section, policy, folder, base if section.lora_rank else str(policy))
    _write_generation(config.sampling, tokenizer, folder)
    base_folder = str(Path(base).resolve()) if Path(base).is_dir() else None
    if adapter := bool(section.lora_rank) and merging is None:  # it names its model so that any folder finds it
        file = folder / "adapter_config.json"
        settings = json.loads(file.read_text(encoding="utf-8"))
        settings["base_model_name_or_path"] = base_folder or base
        file.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return {
        "kind": "adapter" if adapter else "weights",
        "base": section.path,
        "base_folder": base_folder,
        "chat": section.chat_template == "auto" and bool(tokenizer.hf.chat_template),
        "messages_before": [message.model_dump() for message in section.messages_before],
        "template_args": dict(section.template_args),
        "stop": list(config.sampling.stop),
        "max_new_tokens": config.sampling.max_new_tokens,
        "end_tokens": [{"id": id, "text": tokenizer.hf.decode([id])} for id in tokenizer.end_ids],
    }


def _write_generation(sampling: SamplingSection, tokenizer: HFTokenizer, folder: Path) -> None:
    """Write how the policy was sampled; penalties that the base model's own may hold were not trained with."""
    require("transformers").GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        bos_token_id=tokenizer.hf.bos_token_id,
        eos_token_id=list(tokenizer.end_ids),
        pad_token_id=tokenizer.pad_id,
    ).save_pretrained(folder)


def _weights(policy: Path) -> list[str]:
    """Return the names of the files that whole weights are in: one, or those that an index names."""
    single_file, index = "model.safetensors", policy / INDEX
    if (policy / single_file).is_file() or not index.is_file():
        return [single_file]
    names = files_of(_read_object(index))
    if not names:
        raise damaged(index, ValueError("it has no 'weight_map' from the weights to their files"))
    return names


def _read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a checkpoint's file, which may be missing or ``damaged``."""
    try:
        parsed = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(parsed, dict):
            raise ValueError(f"it holds a {type(parsed).__name__}; expected a JSON object")
    except (OSError, ValueError) as error:
        raise damaged(file, error) from error
    return parsed


def _write_copy(section: ModelSection, policy: Path, folder: Path, model: str) -> HFTokenizer:
    """Copy what a checkpoint holds but peft's page; ``model`` is whose generation config says what ends an answer."""
    transformers = require("transformers")
    shutil.copytree(policy, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("README.md"))
    with reading(str(policy)):
        hf = transformers.AutoTokenizer.from_pretrained(policy, trust_remote_code=section.trust_remote_code)
        try:
            ends = transformers.GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:  # many models have none
            ends = None
    return HFTokenizer(hf, section, ends)
