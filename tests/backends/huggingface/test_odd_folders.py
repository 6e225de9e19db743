"""Model folders whose files are valid, and lead elsewhere or never end."""

import json
import shutil
import time

import pytest

from steadyrl.backends.huggingface.folder import BASE_MODEL, open_folder, read_tokenizer
from steadyrl.core.errors import ModelError
from steadyrl.core.sections import ModelSection
from tests import needs

needs.skip_without_packages("transformers", extra="torch")


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(BASE_MODEL, tmp_path / "model")


def replaced(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


@pytest.mark.parametrize("stage", ["normalizer", "decoder"])
def test_a_tokenizer_that_doubles_texts_is_refused_at_once(folder, stage):
    file = folder / "tokenizer.json"
    stated = json.loads(file.read_text())
    doubling = {"type": "Sequence", f"{stage}s": [replaced("?", "??")] * 40}
    file.write_text(json.dumps(stated | {stage: {"type": "Sequence", f"{stage}s": [doubling]}}))
    began = time.process_time()
    with pytest.raises(ModelError, match=f"the {stage} in '.*tokenizer.json' makes texts more than 100 times as long"):
        read_tokenizer(str(folder))
    assert time.process_time() - began < 10


def test_a_tokenizer_that_replaces_characters_as_published_ones_do_is_read(folder):
    file = folder / "tokenizer.json"
    stated = json.loads(file.read_text())
    steps = [{"type": "Prepend", "prepend": "▁"}, replaced(" ", "▁"), replaced("``", '"'), {"type": "NFKC"}]
    file.write_text(json.dumps(stated | {"normalizer": {"type": "Sequence", "normalizers": steps}}))
    assert read_tokenizer(str(folder))("cats").input_ids


@pytest.mark.parametrize(
    "elsewhere", ["../other/model.safetensors", "{here}/other/model.safetensors", "sub/../model-1"]
)
def test_an_index_that_leads_out_of_its_folder_is_refused(folder, tmp_path, elsewhere):
    (tmp_path / "other").mkdir()
    shutil.move(folder / "model.safetensors", tmp_path / "other" / "model.safetensors")
    weights = {"lm_head.weight": elsewhere.format(here=tmp_path)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    with pytest.raises(ModelError, match="has no 'weight_map' from the weights to files beside it"):
        open_folder(ModelSection(path=str(folder)))
