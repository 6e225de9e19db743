"""Every family of docs/models.md, as a tiny model from its configuration: trained, saved, resumed, or refused."""

import importlib
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steadyrl.batch import make_batch
from steadyrl.errors import ModelError
from steadyrl.rollout.collect import collect
from steadyrl.types import Problem, Sampling
from tests import needs

torch = needs.package("torch")
transformers = needs.package("transformers")

from safetensors import safe_open  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

ROOT = Path(__file__).parents[3]
TABLE = {
    line.split("|")[1].strip(): line
    for line in (ROOT / "docs" / "models.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
}
TRAINED = [name for name, line in TABLE.items() if "fast decoder" in line or "own forward" in line]
REFUSED = [name for name, line in TABLE.items() if "| refused |" in line]
PROBLEMS = [Problem(str(i), text) for i, text in enumerate(("the", "a red cat sees two small birds", "one dog"))]
SAMPLING = Sampling(max_new_tokens=6)


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


def batch_of(families, backend, seed=0):
    groups = collect(backend, PROBLEMS, 2, SAMPLING, (seed, 0))
    rewards = iter(np.random.default_rng(seed).normal(size=2 * len(PROBLEMS)))
    groups = [replace(g, rollouts=tuple(replace(r, reward=next(rewards)) for r in g.rollouts)) for g in groups]
    batch = make_batch(groups, backend.tokenizer.pad_id)
    old = backend.score(batch, SAMPLING, families.ALGORITHM.needs)
    return families.ALGORITHM.prepare(replace(batch, old=old), families.ALGORITHM.state)


def step(families, backend, batch):
    algorithm = families.ALGORITHM
    return backend.step(batch, algorithm.loss, SAMPLING, algorithm.needs, 1e-2, 1e9)


def plain_logprobs(folder, batch, row):
    """Log-probs [T] of one row's tokens by a plain forward pass of transformers, alone and unpadded."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(batch.tokens[row, : batch.lengths[row]].astype(np.int64))[None]
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].double().log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[:, 0].numpy()


def names_in(folder):
    """Names of the tensors in a folder's weights."""
    found = set()
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as opened:
            found |= set(opened.keys())
    return found


def weights(backend):
    return {name: p.detach().clone() for name, p in backend.trainable().items()}


def test_the_page_lists_every_family_that_is_tried(families):
    assert sorted(families.FAMILIES) == sorted([*TRAINED, *REFUSED])
    assert len(TRAINED) >= 25


@pytest.mark.parametrize("name", TRAINED)
def test_a_family_is_sampled_scored_trained_saved_and_resumed(families, written, tmp_path, name):
    folder = written(name)
    backend = families.open_model(folder)
    assert backend.describe()["decoder"] == ("fast" if "fast decoder" in TABLE[name] else "transformers")
    batch = batch_of(families, backend)
    mask = batch.completion_mask
    np.testing.assert_allclose(batch.old.logprobs[mask], batch.sampling_logprobs[mask], atol=1e-4)
    np.testing.assert_allclose(batch.old.kl_ref_exact[mask], 0, atol=1e-5)
    row = int(np.argmax(batch.lengths))
    expected = plain_logprobs(folder, batch, row)[mask[row, 1 : batch.lengths[row]]]
    np.testing.assert_allclose(batch.old.logprobs[row][mask[row]], expected, atol=5e-5)
    assert expected.std() > 0.1

    step(families, backend, batch)
    moved = backend.score(batch, SAMPLING, families.ALGORITHM.needs)
    assert np.abs(moved.logprobs - batch.old.logprobs).max() > 1e-2
    np.testing.assert_array_equal(moved.ref_logprobs, batch.old.ref_logprobs)
    backend.save(tmp_path)
    assert names_in(tmp_path / "policy") == names_in(folder), "those of the hub"
    expected = plain_logprobs(tmp_path / "policy", batch, row)[mask[row, 1 : batch.lengths[row]]]
    np.testing.assert_allclose(moved.logprobs[row][mask[row]], expected, atol=5e-5)

    resumed = families.open_model(folder, "run.seed=1")
    resumed.load(tmp_path)
    for one in (backend, resumed):
        step(families, one, batch_of(families, one, seed=3))
    for parameter, other in zip(weights(backend).values(), weights(resumed).values(), strict=True):
        assert torch.equal(parameter, other)


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_is_refused_in_the_line_that_the_page_shows(families, written, name):
    folder = written(name)
    with pytest.raises(ModelError) as refused:
        families.open_model(folder)
    assert "\n" not in str(refused.value)
    assert f"| {name} | refused | {refused.value} |" == TABLE[name]


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_neox", "granite", "qwen3_next"])
def test_an_adapter_of_another_family_goes_on_as_if_it_had_not_stopped(families, written, tmp_path, name):
    folder, adapter = written(name), "model.lora_rank=2"
    unbroken = families.open_model(folder, adapter)
    batch = batch_of(families, unbroken)
    np.testing.assert_allclose(batch.old.logprobs, batch.sampling_logprobs, atol=1e-4)
    step(families, unbroken, batch)
    unbroken.save(tmp_path)
    resumed = families.open_model(folder, adapter, "run.seed=1")
    resumed.load(tmp_path)
    one, other = (batch_of(families, backend, seed=3).old for backend in (unbroken, resumed))
    np.testing.assert_array_equal(one.logprobs, other.logprobs)
    assert np.abs(one.kl_ref_exact).max() > 1e-5
