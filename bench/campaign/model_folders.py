"""Model folders with changed files: loaded, or refused in one line; what they bring along as Python never runs."""

from __future__ import annotations

import functools
import json
import os
import pickle
import random
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

from bench.campaign.trial import STRANGE, Failure, changed_json, changed_text, refused_or_done

LOADED_S = 60.0  # of processor time, for a model of some kilobytes
BASE = Path(__file__).parents[2] / "steadyrl" / "backends" / "base-model"
MARK = "executed"
CODE = (
    "from pathlib import Path\nPath(__file__).with_name('executed').write_text('x')\nPath('executed').write_text('x')\n"
)
FAMILIES = ("llama", "qwen2", "gpt2", "gpt_neox")
# Templates that reach for Python behind jinja's back, for files, or for what is not there.
TEMPLATES = (
    "{{ cycler.__init__.__globals__.os.popen('touch executed').read() }}",
    "{{ lipsum.__globals__['os'].system('touch executed') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% for c in ().__class__.__base__.__subclasses__() %}{{ c.__init__.__globals__ }}{% endfor %}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ '%c' % 10**9 }}", "{% include '/etc/passwd' %}", "{% import 'os' as os %}{{ os }}", "{% extends 'x' %}",
    "{{ raise_exception('no') }}", "{{ 1 // 0 }}", "{{ messages[7].content }}", "{{ nothing.at.all }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ messages.pop() }}{{ messages[0].clear() }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}", "{{ strftime_now('%Y' * 5000) }}", "{{",
    "{% endif %}",
    "{{ '\ud800' }}", "", " ", "{{ messages | tojson(indent=10**3) }}", "{% generation %}x{% endgeneration %}",
)  # fmt: skip


class _Planted:
    """A pickle of it writes a file when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({MARK!r}, 'w').write('x')",)


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed when the campaign ends."""
    return tempfile.TemporaryDirectory(prefix="campaign-")


@functools.cache
def good_folder(family: str) -> Path:
    """Make a tiny whole model: the tokenizer of the base model, and one layer of 8 columns."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    folder = Path(_home().name) / family
    tokenizer = transformers.AutoTokenizer.from_pretrained(BASE)
    names = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if family == "gpt2":
        names = {"n_embd": 8, "n_inner": 16, "n_layer": 1, "n_head": 2}
    more = {"eos_token_id": tokenizer.eos_token_id, "tie_word_embeddings": family == "qwen2"}
    sizes = transformers.AutoConfig.for_model(family, vocab_size=len(tokenizer), **names, **more)
    with torch.random.fork_rng(devices=[]):  # the same weights whatever was tried before: a trial can be repeated
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def attack(rng: random.Random, folder: Path) -> Failure:
    """Change one or two things of a model, plant code beside it, and load the folder."""
    import torch

    from steadyrl.backends.torch.load.model import load_model
    from steadyrl.core.sections import ModelSection

    copy = Path(shutil.copytree(good_folder(rng.choice(FAMILIES)), folder / "model"))
    changes = (_change_text, _change_text, _change_text, _change_weights, _change_table, _change_place, _write_template)
    done = [rng.choice(changes)(copy, rng) for _ in range(rng.choice((1, 1, 2)))]
    done += [_plant_classes(copy)] if rng.random() < 0.3 else []
    done += [_plant_pickles(copy, rng)] if rng.random() < 0.3 else []
    here = Path.cwd()
    os.chdir(folder)
    try:
        section = ModelSection(path=str(copy), lora_rank=rng.choice((0, 0, 4)))
        failure = refused_or_done(lambda: load_model(section, torch.device("cpu"), torch.float32), LOADED_S)
    finally:
        os.chdir(here)
    if any(folder.rglob(MARK)):
        failure = "the folder's own code ran"
    return f"{failure} | {done}" if failure else ""


def _change_text(folder: Path, rng: random.Random) -> str:
    """Change the bytes or values of a file of text."""
    texts = [path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".jinja") and path.is_file()]
    if not texts:
        return "no text is left"
    path = rng.choice(texts)
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        path.write_bytes((changed_json if path.suffix == ".json" else changed_text)(text, rng))
    except (ValueError, RecursionError):  # changed before, and no JSON any more
        path.write_bytes(changed_text(text, rng))
    return f"text of {path.name}"


def _change_weights(folder: Path, rng: random.Random) -> str:
    """Flip a bit of the weights' table, or cut the file."""
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes() if weights.is_file() else b"x")
    data[rng.randrange(min(500, len(data)))] ^= 1 << rng.randrange(8)
    weights.unlink(missing_ok=True) if weights.is_file() or weights.is_symlink() else shutil.rmtree(weights, True)
    weights.write_bytes(data if rng.random() < 0.5 else data[: rng.randrange(len(data))])
    return "bytes of the weights"


def _change_table(folder: Path, rng: random.Random) -> str:
    """Change what the weights' table says: names, types, shapes, and where each lies."""
    weights = folder / "model.safetensors"
    if not weights.is_file() or weights.stat().st_size < 9:
        return "no weights are left"
    data = weights.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    try:
        table = json.loads(data[8 : 8 + size])
    except ValueError:  # changed before
        return "no table is left"
    name = rng.choice([name for name in table if name != "__metadata__"])
    entry = table[name]
    match rng.randrange(7):
        case 0:
            entry["shape"] = rng.choice(([], [0], [-1], [2**40, 2**40], [1] * 100, entry["shape"][::-1], "x", None))
        case 1:
            entry["dtype"] = rng.choice(("F64", "BF16", "I64", "BOOL", "F8_E4M3", "x", None, 5))
        case 2:
            entry["data_offsets"] = rng.choice(
                ([0, 0], [0, 2**62], [-5, 5], [10, 0], [0], "x", entry["data_offsets"][::-1])
            )
        case 3:
            table[rng.choice(("", "../../x", "lm_head.weight", "x" * 5000, "\x00", "model.layers.999.x"))] = table.pop(
                name
            )
        case 4:
            table["__metadata__"] = rng.choice(STRANGE[:20])
        case 5:
            table = {
                **table,
                **{f"more{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(2000)},
            }
        case _:
            size = rng.choice((0, 1, 2**63, 2**64 - 1, len(data)))
    head = json.dumps(table).encode()
    length = struct.pack("<Q", size if size in (0, 1, 2**63, 2**64 - 1, len(data)) else len(head))
    weights.write_bytes(length + head + data[8 + struct.unpack("<Q", data[:8])[0] :])
    return f"table of the weights: {name}"


def _change_place(folder: Path, rng: random.Random) -> str:
    """Remove a file, or put a folder, a link or nothing in its place."""
    path = rng.choice(sorted(folder.iterdir()))
    what = rng.choice(("removed", "a folder", "a link to itself", "a link to nothing", "empty", "under another name"))
    shutil.copy(path, folder / f"{path.name}.old") if what == "under another name" and path.is_file() else None
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    match what:
        case "a folder":
            path.mkdir()
        case "a link to itself":
            path.symlink_to(path.name)
        case "a link to nothing":
            path.symlink_to("nothing")
        case "empty":
            path.touch()
    return f"{path.name}: {what}"


def _write_template(folder: Path, rng: random.Random) -> str:
    """Write a hostile chat template."""
    text = rng.choice(TEMPLATES)
    path = folder / "chat_template.jinja"
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"template {text[:60]!r}"


def _plant_classes(folder: Path) -> str:
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
        except (OSError, ValueError, RecursionError):  # changed before, and no JSON any more
            continue
        if isinstance(found, dict):
            path.write_text(json.dumps({**found, "auto_map": classes}), encoding="utf-8")
    return "classes of its own"


def _plant_pickles(folder: Path, rng: random.Random) -> str:
    """Put pickles that run code where older models have their weights, in the place of the safe ones at times."""
    planted = pickle.dumps(_Planted())
    for name in ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "optimizer.pt", "tokenizer.pkl"):
        (folder / name).write_bytes(planted)
    names = {"weight_map": dict.fromkeys(("lm_head.weight", "model.norm.weight"), "pytorch_model.bin"), "metadata": {}}
    (folder / rng.choice(("pytorch_model", "model.safetensors"))).with_suffix(".bin.index.json").write_text(
        json.dumps(names)
    )
    if rng.random() < 0.5:
        adapter = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "target_modules": ["q_proj"], "r": 4}
        (folder / "adapter_config.json").write_text(json.dumps(adapter))
    weights = folder / "model.safetensors"
    if rng.random() < 0.5 and weights.is_file():
        weights.unlink()
    return "pickles"
