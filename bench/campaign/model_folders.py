"""Model folders with changed files: loaded, or refused in one line; what they bring along as Python never runs."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import tempfile
from pathlib import Path

from bench.campaign.trial import Failure, changed_json, changed_text, refused_or_done

LOADED_S = 60.0  # of processor time, for a model of some kilobytes
BASE = Path(__file__).parents[2] / "steadyrl" / "assets" / "base-model"
MARK = "executed"
CODE = (
    "from pathlib import Path\nPath(__file__).with_name('executed').write_text('x')\nPath('executed').write_text('x')\n"
)


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed when the campaign ends."""
    return tempfile.TemporaryDirectory(prefix="campaign-")


@functools.cache
def good_folder() -> Path:
    """Make a tiny whole model: the tokenizer of the base model, and a Llama of 8 columns."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    folder = Path(_home().name) / "model"
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    sizes = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def attack(rng: random.Random, folder: Path) -> Failure:
    """Change one or two files of a model, plant code beside them, and load the folder."""
    import torch

    from steadyrl.backends.torch.model import load_model
    from steadyrl.sections import ModelSection

    copy = Path(shutil.copytree(good_folder(), folder / "model"))
    texts = [path for path in sorted(copy.iterdir()) if path.suffix in (".json", ".jinja")]
    changed = rng.sample(texts, rng.choice((1, 1, 2)))
    for path in changed:
        text = path.read_text(encoding="utf-8")
        path.write_bytes((changed_json if path.suffix == ".json" else changed_text)(text, rng))
    if rng.random() < 0.2:
        weights = copy / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[rng.randrange(min(500, len(data)))] ^= 1 << rng.randrange(8)
        weights.write_bytes(data if rng.random() < 0.7 else data[: rng.randrange(len(data))])
    if rng.random() < 0.3:
        _plant(copy)
    here = Path.cwd()
    os.chdir(folder)
    try:
        section = ModelSection(path=str(copy))
        failure = refused_or_done(lambda: load_model(section, torch.device("cpu"), torch.float32), LOADED_S)
    finally:
        os.chdir(here)
    if any(folder.rglob(MARK)):
        failure = "the folder's own code ran"
    return f"{failure} | {[path.name for path in changed]}" if failure else ""


def _plant(folder: Path) -> None:
    """Let the config name classes of a module that lies in the folder."""
    for name in ("modeling_x", "tokenization_x", "__init__", "usercustomize"):
        (folder / f"{name}.py").write_text(CODE, encoding="utf-8")
    for name, classes in (
        ("config.json", {"AutoConfig": "modeling_x.C", "AutoModelForCausalLM": "modeling_x.M"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["tokenization_x.T", None]}),
    ):
        path = folder / name
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError):  # changed before, and no JSON any more
            continue
        if isinstance(found, dict):
            path.write_text(json.dumps({**found, "auto_map": classes}), encoding="utf-8")
