"""The MLX backend beside the torch backend: the same numbers, the same files, and what holds of every backend."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.errors import CheckpointError, ConfigError, ModelError
from steadyrl.core.protocols import Update
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Sampling
from steadyrl.loop import checkpoint
from steadyrl.loop.checkpoint import State
from tests import needs
from tests.backends.ppo_batch import (
    ALGORITHM,
    NARROW,
    PLAIN,
    TEXTS,
    cosines,
    products_and_norms,
    prompts_of,
    scored_batch,
    step,
    train,
)
from tests.rounding import NATS, rounding

torch = needs.package("torch")
transformers = needs.package("transformers")
needs.skip_without_packages("mlx", "mlx_lm", extra="mlx")

import mlx.core as mx  # noqa: E402
import mlx.optimizers as optim  # noqa: E402

from steadyrl.backends.mlx import memory  # noqa: E402
from steadyrl.backends.mlx.backend import MlxBackend  # noqa: E402
from steadyrl.backends.mlx.sampler import draw, warp  # noqa: E402
from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

FAMILIES = ("llama", "qwen2", "qwen3")
CLASSES = {"mlx": MlxBackend, "torch": TorchBackend}


def opened(name, folder, *overrides, algorithm=ALGORITHM):
    settings = {
        "model": {"path": str(folder)},
        "backend": {"name": name, "device": "cpu"},
        "rewards": {"length": 1.0},
    }
    return CLASSES[name](config.resolve(settings, overrides), algorithm)


def weights(backend):
    """What is trained, by PyTorch's names."""
    if isinstance(backend, TorchBackend):
        return {name: p.detach().numpy().copy() for name, p in backend.trainable().items()}
    return {name: np.array(array) for name, array in backend._net.params.items()}


def test_a_value_head_with_a_rate_of_its_own_moves_as_it_does_in_pytorch(tiny_models):
    moves = {}
    for name in ("torch", "mlx"):
        backend = opened(name, tiny_models["llama"], algorithm=replace(ALGORITHM, value_rate=3e-3))
        batch, before = scored_batch(backend, NARROW), weights(backend)
        for _ in range(2):
            step(backend, batch, rate=0.0)
        after = weights(backend)
        assert all((after[key] == array).all() for key, array in before.items() if not key.startswith("value_head"))
        moves[name] = after["value_head.linear.weight"]
        assert (moves[name] != before["value_head.linear.weight"]).any()
    np.testing.assert_allclose(moves["mlx"], moves["torch"], rtol=1e-2, atol=1e-6)


@pytest.mark.halved
@pytest.mark.parametrize("sampling", [PLAIN, NARROW], ids=["plain", "narrow"])
@pytest.mark.parametrize("family", FAMILIES)
def test_both_frameworks_agree(tiny_models, tmp_path, family, sampling):
    """Completions, log-probs, entropies, losses and gradients, of a policy that has left its reference."""
    one, other = (opened(name, tiny_models[family]) for name in ("torch", "mlx"))
    drawn = [backend.generate(prompts_of(backend), sampling, range(6)) for backend in (one, other)]
    for a, b in zip(*drawn, strict=True):
        assert a.ids.tolist() == b.ids.tolist() and a.stop_reason == b.stop_reason
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=NATS)
        if sampling.truncates:
            assert [ids.tolist() for ids in a.kept_ids] == [ids.tolist() for ids in b.kept_ids]
    train(one, [0])  # away from the reference
    one.save(tmp_path)
    other.load(tmp_path)
    batch = scored_batch(one, sampling, seed=1)
    scores = [backend.score(batch, sampling, ALGORITHM.needs) for backend in (one, other)]
    measured = ("logprobs", "entropy", "values", "ref_logprobs", "kl_ref_exact", "kl_ref_full")
    for name in measured[: None if sampling.truncates else -1]:
        np.testing.assert_allclose(getattr(scores[1], name), getattr(scores[0], name), atol=NATS, err_msg=name)
    assert scores[0].kl_ref_exact.max() > 1e-3
    one.optimizer = torch.optim.SGD(list(one.trainable().values()))
    other.optimizer = optim.SGD(0.0)
    start = weights(other)
    found = [step(backend, batch, sampling, rate=1.0) for backend in (one, other)]
    assert found[0].keys() == found[1].keys()
    for name, (total, count) in found[0].items():
        assert found[1][name] == (pytest.approx(total, rel=1e-4, abs=NATS * math.sqrt(count)), count), name
    assert found[1]["loss/total"][0] == pytest.approx(found[0]["loss/total"][0], abs=rounding(1.0))
    for (name, a), (same, b) in zip(sorted(weights(one).items()), sorted(weights(other).items()), strict=True):
        gradient = a - start[name]
        assert name == same and np.abs(gradient).max() > 1e-6
        np.testing.assert_allclose(b - start[name], gradient, rtol=0, atol=1e-4 * np.abs(gradient).max(), err_msg=name)


def test_the_padding_token_in_a_prompt_has_no_gradient_as_an_input(tiny_models, tmp_path):
    """As in transformers; a chat model's prompts hold it, where it ends a turn too."""
    shutil.copytree(tiny_models["qwen2"], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token_id": 0}))
    one, other = (opened(name, tmp_path) for name in ("torch", "mlx"))
    batch = scored_batch(one, NARROW)
    tokens = batch.tokens.copy()
    tokens[:, 0] = 0
    batch = replace(batch, tokens=tokens)
    gradients = []
    for backend in (one, other):
        named, _ = backend.gradients(batch, Update(ALGORITHM.loss, NARROW, ALGORITHM.needs, 0.0, 1.0))
        gradients.append(np.array(named["model.embed_tokens.weight"].tolist()))
    a, b = gradients
    np.testing.assert_allclose(b, a, rtol=0, atol=1e-4 * np.abs(a).max())
    assert not b[0].any() and b[1:].any()


def test_adam_takes_the_same_steps(tiny_models):
    """Its first step is the learning rate in each direction; without the correction of its bias it is 0.2 of that."""
    one, other = (opened(name, tiny_models["qwen3"], "update.weight_decay=0.1") for name in ("torch", "mlx"))
    batch, start = scored_batch(one, NARROW), weights(other)
    for backend in (one, other):
        step(backend, batch, rate=1e-3, max_grad_norm=0.5)
    after, expected = weights(other), weights(one)
    for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight"):
        np.testing.assert_allclose(after[name], expected[name], atol=2e-5)
        shrunk = start[name] * (1 - 1e-3 * 0.1)
        assert np.median(np.abs(after[name] - shrunk)) == pytest.approx(1e-3, rel=1e-2)


def test_warping_by_hand():
    """Probabilities 1/2, 1/4, 1/8, 1/8: squared and renormalised at temperature 1/2 they are 8, 2, 1/2, 1/2 of 11."""
    logits = mx.log(mx.array([[0.125, 0.5, 0.125, 0.25]]))

    def warped(**settings):
        return mx.softmax(warp(logits, Sampling(1, **settings)), axis=-1)[0].tolist()

    assert warped() == pytest.approx([1 / 8, 1 / 2, 1 / 8, 1 / 4])
    assert warped(temperature=0.5) == pytest.approx([1 / 22, 8 / 11, 1 / 22, 2 / 11])
    assert warped(top_k=2) == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert warped(top_p=0.51) == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert warped(top_k=2, top_p=0.6) == pytest.approx([0, 1, 0, 0])
    # Temperature first: untempered, the likeliest has 1/2, and two tokens would be kept.
    assert warped(temperature=0.5, top_p=0.7) == pytest.approx([0, 1, 0, 0])


def test_draws_follow_the_cumulative_distribution():
    """Over more tokens than one block of sums holds, most of them without probability."""
    logits = np.full((6, 300), -np.inf, np.float32)
    logits[:, [1, 3, 299]] = np.log([0.25, 0.5, 0.25])
    tokens, logprobs = draw(mx.array(logits), mx.array([0.0, 0.249, 0.251, 0.749, 0.751, 1 - 2.0**-24]))
    assert tokens.tolist() == [1, 1, 3, 3, 299, 299]
    assert np.exp(np.array(logprobs)).tolist() == pytest.approx([0.25, 0.25, 0.5, 0.5, 0.25, 0.25])


def test_sampled_tokens_have_the_exact_distribution(tiny_models):
    """Chi-square of 4,000 first tokens against the warped softmax of transformers in float64."""
    from scipy import stats

    backend, sampling, count = opened("mlx", tiny_models["llama"]), Sampling(1, temperature=0.7, top_p=0.9), 4000
    prompt = backend.tokenizer.encode_prompt("a red cat")
    drawn = backend.generate([prompt] * count, sampling, range(count))
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["llama"], dtype=torch.float64).eval()
    with torch.no_grad():
        p = (model(torch.from_numpy(prompt.astype(np.int64))[None]).logits[0, -1] / 0.7).softmax(-1).numpy()
    order = np.argsort(-p)
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), 0.9)) + 1]
    counts = np.bincount([int(c.ids[0]) for c in drawn], minlength=len(p))
    assert len(kept) >= 3 and counts.sum() == counts[kept].sum() == count
    assert all(sorted(kept) == c.kept_ids[0].tolist() for c in drawn)
    assert stats.chisquare(counts[kept], count * p[kept] / p[kept].sum()).pvalue > 1e-3
    assert drawn[0].logprobs[0] == pytest.approx(math.log(p[drawn[0].ids[0]] / p[kept].sum()), abs=NATS)


def test_rows_that_finish_leave_the_others_as_they_would_be_alone(tiny_models):
    backend, sampling = (
        opened("mlx", tiny_models["llama"], "backend.args.generate_rows=5"),
        Sampling(24, temperature=1.5),
    )
    prompts = [p for p in prompts_of(backend)[:3] for _ in range(4)]
    together = backend.generate(prompts, sampling, range(12))
    lengths = [len(c.ids) for c in together]
    assert min(lengths) <= 12 and max(lengths) == 24
    for i, completion in list(enumerate(together))[::3]:
        alone = backend.generate([prompts[i]], sampling, [i])[0]
        assert completion.ids.tolist() == alone.ids.tolist()
        np.testing.assert_allclose(completion.logprobs, alone.logprobs, atol=NATS)
        assert (completion.stop_reason == "stop") == (completion.ids[-1] in backend.tokenizer.end_ids)
        assert not np.isin(completion.ids[:-1], backend.tokenizer.end_ids).any()


@pytest.mark.parametrize(
    "overrides", [("backend.args.micro_batch_tokens=1",), ("backend.args.gradient_checkpointing=true",)]
)
def test_neither_micro_batches_nor_recomputing_change_the_update(tiny_models, overrides):
    whole, other = (opened("mlx", tiny_models["qwen3"], *some) for some in ((), overrides))
    batch, found = scored_batch(whole, NARROW), []
    for backend in (whole, other):
        backend.optimizer = optim.SGD(0.0)
        found.append(step(backend, batch, rate=0.1))
    for name, (total, count) in found[0].items():
        assert found[1][name] == (pytest.approx(total, rel=1e-4, abs=NATS * math.sqrt(count)), count)
    for name, array in weights(whole).items():
        np.testing.assert_allclose(weights(other)[name], array, atol=1e-5)


def test_memory_that_runs_out_halves_the_micro_batches(tiny_models, caplog):
    backend = opened("mlx", tiny_models["llama"])
    batch, sizes = scored_batch(backend, PLAIN), []

    def too_large(size):
        sizes.append(size)
        if size > 2048:
            raise RuntimeError("[malloc] Unable to allocate 99 bytes.")
        return backend._measured([np.arange(len(TEXTS))], batch, PLAIN, frozenset())

    assert backend._micro_batch.fitting(too_large)["logprobs"].shape == batch.tokens.shape
    assert sizes == [8192, 4096, 2048] and "going on with 2048" in caplog.text
    assert not memory.ran_out(ValueError("something else"))


def test_the_bound_of_memory_reaches_mlx():
    before = mx.set_memory_limit(2**36), mx.set_cache_limit(2**36)
    memory.limit(0.0)
    assert mx.set_memory_limit(2**36) == 2**36
    memory.limit(2.0)
    assert (mx.set_memory_limit(before[0]), mx.set_cache_limit(before[1])) == (2**31, 2**29)


def test_the_cosine_of_a_gradient_is_that_with_the_ones_before(tiny_models):
    first, *others = cosines(opened("mlx", tiny_models["llama"]))
    assert first is None
    assert others == pytest.approx([1.0, -1.0], abs=1e-4)


def test_products_of_gradients_are_those_of_the_updates(tiny_models, monkeypatch):
    backend = opened("mlx", tiny_models["llama"])
    products, norms = products_and_norms(backend)
    assert np.sqrt(np.diag(products)) == pytest.approx(norms, rel=1e-4)
    assert products[0, 1] == products[1, 0] and abs(products[0, 1]) < norms[0] * norms[1]
    monkeypatch.setattr("steadyrl.backends.mlx.backend.MOST_COMPARED", 1000)
    assert backend.gradient_products([None, None], None) is None  # no room: nothing is even looked at


def test_a_gradient_that_is_not_finite_leaves_the_weights(tiny_models):
    backend = opened("mlx", tiny_models["llama"])
    batch, before = scored_batch(backend, NARROW), weights(backend)

    def broken(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"]).sum() * float("inf"), {}

    norm, _ = backend.step(batch, Update(broken, NARROW, ALGORITHM.needs, 1e-2, 1.0))["grad_norm"]
    assert not math.isfinite(norm)
    assert all(np.array_equal(array, before[name]) for name, array in weights(backend).items())
    np.testing.assert_array_equal(backend.score(batch, NARROW, ALGORITHM.needs).logprobs, batch.old.logprobs)


@pytest.mark.parametrize("rank", [0, 4])
def test_training_moves_the_policy_and_leaves_the_reference(tiny_models, rank):
    backend = opened("mlx", tiny_models["llama"], f"model.lora_rank={rank}")
    batch = scored_batch(backend, NARROW)
    np.testing.assert_allclose(batch.old.kl_ref_exact, 0, atol=NATS)
    train(backend, range(2))
    after = backend.score(batch, NARROW, ALGORITHM.needs)
    np.testing.assert_array_equal(after.ref_logprobs, batch.old.ref_logprobs)
    assert np.abs(after.logprobs - batch.old.logprobs).max() > 0.01


def test_updates_that_are_taken_back_leave_weights_and_moments_as_they_were(tiny_models, tmp_path):
    backend = opened("mlx", tiny_models["qwen3"])
    train(backend, range(2))
    put_back = backend.remember()
    backend.save(tmp_path / "before")
    train(backend, range(2, 4))
    put_back()
    backend.save(tmp_path / "after")
    files = {f.relative_to(tmp_path / "before") for f in (tmp_path / "before").rglob("*.safetensors")}
    assert len(files) >= 3
    assert all((tmp_path / "before" / f).read_bytes() == (tmp_path / "after" / f).read_bytes() for f in files)


ADAPTER = pytest.param(("model.lora_rank=4",), marks=pytest.mark.weekly)


@pytest.mark.parametrize(
    "overrides", [pytest.param((), marks=pytest.mark.weekly), ADAPTER, ("backend.args.weights=bf16",)]
)
def test_saved_and_loaded_it_goes_on_as_if_it_had_not_stopped(tiny_models, tmp_path, overrides):
    unbroken, stopped, resumed = (
        opened("mlx", tiny_models["qwen3"], *overrides, f"run.seed={seed}") for seed in (0, 0, 1)
    )
    train(unbroken, range(2))
    train(stopped, [0])
    stopped.save(tmp_path)
    resumed.load(tmp_path)
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()  # nothing may be read when it is first used
    train(resumed, [1])
    expected, got = weights(unbroken), weights(resumed)
    assert expected.keys() == got.keys() and "value_head.linear.weight" in got
    assert all(np.array_equal(got[name], expected[name]) for name in expected)
    one, other = (scored_batch(backend, NARROW, seed=9).old for backend in (unbroken, resumed))
    np.testing.assert_array_equal(one.logprobs, other.logprobs)


@pytest.mark.halved
@pytest.mark.parametrize("overrides", [(), ("model.lora_rank=4",)], ids=["whole", "adapter"])
@pytest.mark.parametrize("names", [("torch", "mlx"), ("mlx", "torch")], ids=["torch to mlx", "mlx to torch"])
def test_a_run_changes_the_framework(tiny_models, tmp_path, names, overrides):
    """Weights, value head and Adam's moments: the next steps are those that the first framework would have taken."""
    first, second = (opened(name, tiny_models["llama"], *overrides) for name in names)
    train(first, range(2))
    run = RunDir(tmp_path)
    checkpoint.save(run, first, State(step=2), 1)
    assert checkpoint.load(run, second).step == 2
    batch = scored_batch(first, NARROW, seed=5)
    moved = second.score(batch, NARROW, ALGORITHM.needs)
    np.testing.assert_allclose(moved.logprobs, batch.old.logprobs, atol=NATS)
    np.testing.assert_allclose(moved.values, batch.old.values, atol=NATS)
    before = np.concatenate([array.ravel() for _, array in sorted(weights(first).items())])
    for backend in (first, second):
        step(backend, batch, rate=1e-3)
    found = [backend.score(batch, NARROW, ALGORITHM.needs) for backend in (first, second)]
    assert np.abs(found[0].logprobs - batch.old.logprobs).max() > 1e-2
    np.testing.assert_allclose(found[1].logprobs, found[0].logprobs, atol=2e-3)
    assert before.size == sum(array.size for array in weights(second).values())


@pytest.mark.parametrize("names", [("torch", "mlx"), ("mlx", "torch")])
def test_a_checkpoint_that_is_read_in_another_way_is_refused(tiny_models, tmp_path, names):
    first, second = (opened(name, tiny_models["llama"]) for name in names)
    first.save(tmp_path)
    probe = tmp_path / "policy" / "probe.json"
    second.load(tmp_path)
    text = probe.read_text()
    probe.write_text(text.replace('"logprobs": [-', '"logprobs": [-1'))
    with pytest.raises(CheckpointError, match=r"log-probs are .* nats from those that were saved with it"):
        second.load(tmp_path)
    probe.write_text(text[:40])
    with pytest.raises(CheckpointError, match=r"is damaged .*; delete it to load the model unchecked"):
        second.load(tmp_path)
    probe.unlink()
    second.load(tmp_path)


@pytest.mark.halved
@pytest.mark.parametrize("name", ["policy/model.safetensors", "value_head.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "cut short", "no table"])
def test_a_damaged_checkpoint_is_refused(tiny_models, tmp_path, name, damage):
    backend = opened("mlx", tiny_models["llama"])
    train(backend, [0])
    backend.save(tmp_path)
    file = tmp_path / name
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[: len(content) // 2] if damage == "cut short" else b"\xff" * 64)
    with pytest.raises(CheckpointError, match=r"safetensors.*earlier one"):
        opened("mlx", tiny_models["llama"]).load(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(tiny_models, tmp_path):
    opened("mlx", tiny_models["qwen2"]).save(tmp_path)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        opened("mlx", tiny_models["llama"]).load(tmp_path)


def test_lora_targets_are_checked(tiny_models):
    backend = opened("mlx", tiny_models["llama"], "model.lora_rank=2", "model.lora_targets=q_proj, v_proj")
    assert {name.split(".")[-2] for name in weights(backend) if "lora" in name} == {"q_proj", "v_proj"}
    with pytest.raises(ConfigError, match=r"no linear layer 'qproj'; expected 'all-linear', or some of .*q_proj"):
        opened("mlx", tiny_models["llama"], "model.lora_rank=2", "model.lora_targets=qproj")


def test_bfloat16_stays_near_float32_and_trains_float32_weights(tiny_models):
    exact, rounded = (opened("mlx", tiny_models["llama"], f"backend.precision={p}") for p in ("fp32", "bf16"))
    batch = scored_batch(exact, PLAIN)
    found = rounded.score(batch, PLAIN, ALGORITHM.needs)
    assert 0 < np.abs(found.logprobs - batch.old.logprobs)[batch.completion_mask].mean() < 0.1
    before = weights(rounded)
    step(rounded, batch, PLAIN, rate=1e-6)
    name = "model.layers.0.mlp.up_proj.weight"
    assert 0 < np.abs(weights(rounded)[name] - before[name]).max() < 1e-5
    assert rounded.describe()["precision"] == "bf16"


def test_an_adapter_trains_on_quantised_weights(tiny_models, tmp_path):
    from mlx_lm.utils import load_model, quantize_model, save_model

    net, settings = load_model(tiny_models["llama"])
    net, settings = quantize_model(net, settings, group_size=32, bits=4)
    save_model(tmp_path, net)
    from shutil import copy

    for file in tiny_models["llama"].glob("*"):
        if not file.name.startswith(("model", "config")):
            copy(file, tmp_path)
    from mlx_lm.utils import save_config

    save_config(settings, tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"quantised weights, which cannot be trained; set model\.lora_rank = 16"):
        opened("mlx", tmp_path)
    backend = opened("mlx", tmp_path, "model.lora_rank=4")
    batch = scored_batch(backend, NARROW)
    train(backend, range(2))
    after = backend.score(batch, NARROW, ALGORITHM.needs)
    np.testing.assert_array_equal(after.ref_logprobs, batch.old.ref_logprobs)
    assert np.abs(after.logprobs - batch.old.logprobs).max() > 0.01


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["backend.device=cuda"], "expected 'auto', 'cpu' or 'gpu' with backend.name = 'mlx'"),
        (["model.trust_remote_code=true"], "runs no code of a model folder"),
        (["sampler.engine=vllm"], "serves the weights of backend.name = 'torch'; got 'mlx'"),
        (["backend.args.memory_gib=-1"], r"backend\.args\.memory_gib: got -1; expected a number greater than or"),
        (["backend.name=torch", "backend.args.memory_gib=1"], r"backend\.args\.memory_gib: unknown setting"),
        (["backend.name=toy", "backend.args.memory_gib=1"], "has no effect with backend.name = 'toy'"),
    ],
)
def test_what_mlx_has_not_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        config.resolve({"backend": {"name": "mlx"}, "rewards": {"length": 1.0}}, overrides)


def test_strings_end_the_same_completions_as_in_torch(tiny_models):
    ours, theirs = (opened(name, tiny_models["llama"]) for name in ("mlx", "torch"))
    free = [ours.tokenizer.decode(one.ids) for one in drawn_by(ours, PLAIN)]
    stop = next(text[2:4] for text in free if len(text) > 6)
    stopped = [drawn_by(backend, replace(PLAIN, stop=(stop,))) for backend in (ours, theirs)]
    assert any(stop in text for text in free)
    for one, other, text in zip(*stopped, free, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        assert one.stop_reason == other.stop_reason
        assert one.stop_reason == "stop" or stop not in text


def drawn_by(backend, sampling):
    prompts = [backend.tokenizer.encode_prompt(text) for text in TEXTS]
    return backend.generate(prompts, sampling, range(len(prompts)))
