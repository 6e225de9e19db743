"""Every family of docs/models.md, as a tiny model from its configuration: trained, saved, resumed, or refused."""

import importlib
import warnings
from pathlib import Path

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.errors import ConfigError, ModelError
from tests import needs
from tests.rounding import NATS

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch.load import model as torch_model  # noqa: E402
from steadyrl.backends.torch.save.export import export_policy  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

ROOT = Path(__file__).parents[3]
TABLE = {
    line.split("|")[1].strip(): line
    for line in (ROOT / "docs" / "models.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
}
TRAINED = [name for name, line in TABLE.items() if "fast decoder" in line or "own forward" in line]
# One of each kind whose norms, positions, attention or experts are read by code of its own and that no other test
# trains: recurrences have adapters below, Falcon is read in bfloat16, Qwen3 is all of test_backend.py.
# `make test-all`, which runs each week, tries the others too.
KINDS = {
    "gpt2", "gemma4_text", "gpt_neox", "bloom", "deepseek_v3", "gpt_oss", "llama4_text",
}  # fmt: skip
FAMILIES = [pytest.param(name, marks=() if name in KINDS else pytest.mark.weekly) for name in TRAINED]
REFUSED = [name for name, line in TABLE.items() if "| refused |" in line]


def weekly(*names):
    """Return families that are like others which are tried."""
    return [pytest.param(name, marks=pytest.mark.weekly) for name in names]


@pytest.fixture(scope="module")
def families():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("model_families")


@pytest.fixture
def written(families, tmp_path):
    """Return a function that writes the model of a family and returns its folder."""

    def write(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers, on shapes this small
            families.write_model(name, tmp_path / name)
        return tmp_path / name

    return write


def test_the_page_lists_every_family_that_is_tried(families):
    assert sorted(families.FAMILIES) == sorted([*TRAINED, *REFUSED])
    assert len(TRAINED) >= 25 and set(TRAINED) > KINDS


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_sampled_scored_trained_saved_and_resumed(families, written, name):
    backend, found = families.trial(written(name))
    assert backend.describe()["decoder"] == ("fast" if "fast decoder" in TABLE[name] else "transformers")
    assert found.keys() == families.LIMITS.keys()
    assert {name: value for name, value in found.items() if value > families.LIMITS[name]} == {}


@pytest.mark.parametrize("adapter", [(), ("model.lora_rank=2",), ("model.lora_rank=2", "model.lora_targets=q_proj")])
def test_of_a_model_of_images_too_what_reads_text_is_trained(families, written, adapter):
    backend = families.open_model(written("gemma3"), *adapter)
    inner = backend.model.get_base_model() if adapter else backend.model
    assert any("q_proj" in name for name, _ in inner.model.vision_tower.named_parameters())
    trained = set(backend.trainable()) - {"value_head.linear.weight", "value_head.linear.bias"}
    assert len(trained) >= 4 and all(".language_model." in name for name in trained)
    assert backend.describe()["trained"] < backend.describe()["parameters"]


def test_what_is_no_product_is_left_out_of_all_linear_layers_and_refused_by_name(families, written, monkeypatch):
    folder = written("gemma3")
    monkeypatch.setattr(torch_model, "_multiplies", lambda module: getattr(module, "out_features", 0) != 48)
    trained = families.open_model(folder, "model.lora_rank=2").trainable()
    assert any("down_proj" in name for name in trained)
    assert not any("gate_proj" in name or "up_proj" in name for name in trained)
    with pytest.raises(ConfigError, match="the model has no module 'gate_proj'"):
        families.open_model(folder, "model.lora_rank=2", "model.lora_targets=gate_proj,q_proj")


@pytest.mark.parametrize("adapter", [pytest.param((), marks=pytest.mark.weekly), ("model.lora_rank=2",)])
def test_what_others_prepare_images_by_goes_with_the_policy(families, written, tmp_path, adapter):
    folder, files = written("gemma3"), {"preprocessor_config.json": b'{"size": 28}', "processor_config.json": b"{}"}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    backend = families.open_model(folder, *adapter)
    backend.save(tmp_path)
    (tmp_path / "exported").mkdir()
    settings = config.resolve({"model": {"path": str(folder)}, "rewards": {"length": 1.0}}, adapter)
    export_policy(settings, tmp_path, tmp_path / "exported", merge=bool(adapter))
    for name, content in files.items():
        assert (tmp_path / "exported" / name).read_bytes() == content
    batch = families.batch_of(backend)
    row, mask = 1, batch.completion_mask
    found = families.plain_logprobs(tmp_path / "exported", batch, row)
    np.testing.assert_allclose(batch.old.logprobs[row][mask[row]], found, atol=NATS)


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_is_refused_in_the_line_that_the_page_shows(families, written, name):
    folder = written(name)
    with pytest.raises(ModelError) as refused:
        families.open_model(folder)
    assert "\n" not in str(refused.value)
    assert f"| {name} | refused | {refused.value} |" == TABLE[name]


@pytest.mark.parametrize(
    "name", ["qwen3_next", "mamba2", *weekly("qwen3_moe", "gpt_neox", "laguna", "granite", "gemma3")]
)
def test_an_adapter_of_another_family_goes_on_as_if_it_had_not_stopped(families, written, tmp_path, name):
    folder, adapter = written(name), "model.lora_rank=2"
    unbroken = families.open_model(folder, adapter)
    batch = families.batch_of(unbroken)
    np.testing.assert_allclose(batch.old.logprobs, batch.sampling_logprobs, atol=NATS)
    families.step(unbroken, batch)
    unbroken.save(tmp_path)
    resumed = families.open_model(folder, adapter, "run.seed=1")
    resumed.load(tmp_path)
    one, other = (families.batch_of(backend, seed=3).old for backend in (unbroken, resumed))
    np.testing.assert_array_equal(one.logprobs, other.logprobs)
    assert np.abs(one.kl_ref_exact).max() > 1e-5


@pytest.mark.parametrize("name", ["llama4_text", *weekly("mixtral", "mistral3", "gemma4_text")])
def test_an_adapter_of_another_family_is_merged_into_the_policy_that_it_was(families, written, name):
    """The router of Llama 4 is called a linear layer, and gives two tensors."""
    found = families.trial_of_adapter(written(name))
    assert len(found) == 4
    assert {name: value for name, value in found.items() if value > families.LIMITS[name]} == {}


@pytest.mark.parametrize("name", ["gemma3", "falcon", *weekly("gemma2")])
def test_weights_in_bfloat16_are_sampled_and_trained(families, written, name):
    backend = families.open_model(written(name), "backend.args.weights=bf16")
    batch = families.batch_of(backend)
    gap = np.abs(batch.old.logprobs - batch.sampling_logprobs)[batch.completion_mask]
    assert gap.mean() < 0.02
    families.step(backend, batch)
    moved = backend.score(batch, families.SAMPLING, families.ALGORITHM.needs).logprobs
    assert np.abs(moved - batch.old.logprobs).max() > 0.1
