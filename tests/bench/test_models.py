"""The model folders of the benchmark: every size opens, here and in transformers, with end tokens that are no words."""

import importlib
import os
import shutil
from pathlib import Path

import pytest

from steadyrl.core.config import resolve
from tests import needs

torch = needs.package("torch")
transformers = needs.package("transformers")
needs.skip_without_packages("peft", extra="torch")

BENCH = Path(__file__).parents[2] / "bench"
SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"num_key_value_heads": 1, "head_dim": 4}


@pytest.fixture
def models(monkeypatch, tmp_path):
    """Return the module, which makes its folders in a temporary one, with one narrow layer for each size."""
    monkeypatch.syspath_prepend(str(BENCH))
    module = importlib.import_module("models")
    monkeypatch.setattr(module, "MODELS", tmp_path)
    monkeypatch.setattr(module, "SHAPES", {name: shape | SMALL for name, shape in module.SHAPES.items()})
    return module


# Made narrow, the others differ from these in their name alone.
SIZES = ["base", "7m", "0.5b", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("30m", "1.5b"))]


@pytest.mark.parametrize("name", SIZES)
def test_a_folder_of_the_benchmark_trains_with_the_end_token_of_the_base_model(models, name):
    from steadyrl.backends.torch.load.model import load_model

    folder = models.model_folder(name)
    section = resolve({"model": {"path": str(folder / "own")}, "rewards": {"length": 1.0}}).model
    model, tokenizer = load_model(section, torch.device("cpu"))
    rows = model.get_input_embeddings().weight.shape[0]
    assert [tokenizer.hf.convert_ids_to_tokens(id) for id in tokenizer.end_ids] == ["<|end|>"]
    assert model.config.eos_token_id == tokenizer.end_id
    assert rows == models.SHAPES.get(name, {}).get("vocab_size", 7168)
    assert all(tokenizer.hf.convert_ids_to_tokens([0, rows // 2, rows - 1])), "an id that can be drawn is no word"
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    assert peer.eos_token_id == rows, "the peers' end token is one that can be drawn"
    assert peer("read a file")["input_ids"] == tokenizer.hf("read a file")["input_ids"]


def test_a_folder_that_is_older_than_the_script_is_made_again(models, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "BASE", shutil.copytree(models.BASE, tmp_path / "source"))
    for file in models.BASE.iterdir():
        os.utime(file, (0, 0))
    config = models.model_folder("7m") / "config.json"
    written = config.read_bytes()
    config.write_bytes(b"{}")
    assert models.model_folder("7m").joinpath("config.json").read_bytes() == b"{}"
    os.utime(config, (1, 1))
    assert models.model_folder("7m").joinpath("config.json").read_bytes() == written
