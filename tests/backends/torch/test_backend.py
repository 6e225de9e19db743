"""The torch backend on tiny random models of four families, made on the spot."""

import math
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.counting.count import heard_by
from steadyrl.core.errors import AccessError, CheckpointError, ModelError
from steadyrl.core.protocols import Turn, Update
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Group, Problem, Sampling
from steadyrl.loop import checkpoint
from steadyrl.loop.checkpoint import State
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.rollout.episode import Environment
from steadyrl.maths.batch import make_batch
from tests import needs
from tests.backends.ppo_batch import (
    ALGORITHM,
    NARROW,
    PLAIN,
    PROBLEMS,
    TEXTS,
    cosines,
    products_and_norms,
    prompts_of,
    scored_batch,
    step,
    train,
)
from tests.file_limit import files_end_after
from tests.rounding import NATS, of_gradients, rounding

torch = needs.package("torch")
transformers = needs.package("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from steadyrl.backends.huggingface import portable  # noqa: E402
from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from steadyrl.backends.torch.draw.sampler import draw, sample, warp  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

FAMILIES = ("qwen3", "gpt2", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("llama", "qwen2")))
# GPT-2 is sampled, trained, saved and resumed by test_families.py as well.
QWEN3 = ("qwen3", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("gpt2", "llama", "qwen2")))
WAYS = {"plain": PLAIN, "narrow": NARROW}


def opened(folder, *overrides, algorithm=ALGORITHM):
    settings = {
        "model": {"path": str(folder)},
        "backend": {"device": "cpu", "threads": 1},
        "rewards": {"length": 1.0},
    }
    return TorchBackend(config.resolve(settings, overrides), algorithm)


@pytest.fixture(scope="module")
def backends(tiny_models):
    """One backend per family for tests that only read it."""
    return {name: opened(folder) for name, folder in tiny_models.items()}


def weights(backend):
    return {name: p.detach().clone() for name, p in backend.trainable().items()}


def plain_step(backend, batch):
    """Make one plain gradient step, since Adam's first would blow rounding up to the learning rate.

    Return its measurements, and how far it moved each weight.
    """
    before = weights(backend)
    backend.optimizer = torch.optim.SGD(list(backend.trainable().values()))
    stats = step(backend, batch, rate=0.1)
    return stats, {name: after - before[name] for name, after in weights(backend).items()}


def assert_equal_moves(found, expected):
    assert found.keys() == expected.keys() and max(move.abs().max() for move in expected.values()) > 1e-2
    near = of_gradients(expected.values()) + rounding(2.0, 1)  # weights reach 2, and their difference is rounded
    for name, move in found.items():
        torch.testing.assert_close(move, expected[name], atol=near, rtol=0)


def long_logprobs(folder, batch, row, temperature=1.0):
    """All next-token log-probs [T, V] of one row, in float64, by a plain forward pass of the unpadded sequence."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(batch.tokens[row, : batch.lengths[row]].astype(np.int64))[None]
    with torch.no_grad():
        return (model(ids).logits[0].double() / temperature).log_softmax(-1).numpy()


@pytest.mark.halved
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_sampler_and_score_agree_on_log_probabilities(backends, family, way):
    batch = scored_batch(backends[family], WAYS[way])
    assert len(set(batch.completion_mask.argmax(axis=1))) > 3, "prompts of several lengths, padded on the left"
    np.testing.assert_allclose(batch.old.logprobs, batch.sampling_logprobs, atol=NATS)
    assert batch.old.logprobs[batch.completion_mask].std() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_score_equals_a_plain_forward_pass_of_each_row_alone(backends, tiny_models, family):
    batch = scored_batch(backends[family], PLAIN)
    for row, t in zip(*np.nonzero(batch.completion_mask), strict=True):
        if not batch.completion_mask[row, t - 1]:
            logp = long_logprobs(tiny_models[family], batch, row)
        expected = logp[t - 1]
        assert batch.old.logprobs[row, t] == pytest.approx(expected[batch.tokens[row, t]], abs=NATS)
        assert batch.old.entropy[row, t] == pytest.approx(-(np.exp(expected) * expected).sum(), abs=NATS)


@pytest.mark.parametrize("family", FAMILIES)
def test_truncated_scores_are_normalised_over_the_kept_ids(backends, tiny_models, family):
    batch = scored_batch(backends[family], NARROW)
    kept = iter(np.split(batch.kept.ids, batch.kept.lengths[batch.completion_mask].cumsum()))
    for row, t in zip(*np.nonzero(batch.completion_mask), strict=True):
        if not batch.completion_mask[row, t - 1]:
            logp = long_logprobs(tiny_models[family], batch, row, temperature=0.7)
        ids = next(kept)
        left = np.exp(logp[t - 1, ids])
        assert 0.9 * np.sort(np.exp(logp[t - 1]))[-20:].sum() <= left.sum() + 1e-5
        p = dict(zip(ids.tolist(), left / left.sum(), strict=True))
        assert batch.old.logprobs[row, t] == pytest.approx(math.log(p[int(batch.tokens[row, t])]), abs=NATS)
        assert batch.old.entropy[row, t] == pytest.approx(-sum(x * math.log(x) for x in p.values()), abs=NATS)


def test_a_position_without_kept_ids_was_not_cut(backends):
    """A batch may mix rollouts of truncated sampling with others."""
    backend = backends["llama"]
    narrow, plain = (collect(backend, PROBLEMS[i : i + 1], 1, way, (0, 0))[0] for i, way in enumerate((NARROW, PLAIN)))
    groups = [replace(g, rollouts=tuple(replace(r, reward=0.0) for r in g.rollouts)) for g in (narrow, plain)]
    mixed, alone = (make_batch(some, backend.tokenizer.pad_id) for some in (groups, groups[1:]))
    found = backend.score(mixed, replace(NARROW, temperature=1.0), frozenset()).logprobs[1, : alone.lengths[0]]
    np.testing.assert_allclose(found, backend.score(alone, PLAIN, frozenset()).logprobs[0], atol=NATS)


def test_raw_logprobs_change_what_is_measured_and_not_what_is_drawn(backends):
    backend = backends["llama"]
    sampled = backend.generate(prompts_of(backend), NARROW, range(6))
    raw = backend.generate(prompts_of(backend), replace(NARROW, logprobs="raw"), range(6))
    assert [c.ids.tolist() for c in sampled] == [c.ids.tolist() for c in raw]
    batch = scored_batch(backend, replace(NARROW, logprobs="raw"))
    whole = backend.score(replace(batch, kept=None), PLAIN, frozenset())
    np.testing.assert_allclose(batch.sampling_logprobs, whole.logprobs, atol=NATS)
    np.testing.assert_allclose(batch.old.logprobs, whole.logprobs, atol=NATS)
    np.testing.assert_allclose(batch.old.entropy, whole.entropy, atol=NATS)


def test_warping_by_hand():
    """Probabilities 1/2, 1/4, 1/8, 1/8: squared and renormalised at temperature 1/2 they are 8, 2, 1/2, 1/2 of 11."""
    logits = torch.log(torch.tensor([[0.125, 0.5, 0.125, 0.25]]))

    def warped(**settings):
        return warp(logits, Sampling(1, **settings)).softmax(-1)[0].tolist()

    assert warped() == pytest.approx([1 / 8, 1 / 2, 1 / 8, 1 / 4])
    assert warped(temperature=0.5) == pytest.approx([1 / 22, 8 / 11, 1 / 22, 2 / 11])
    assert warped(top_k=2) == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert warped(top_p=0.5) == pytest.approx([0, 1, 0, 0])
    assert warped(top_p=0.51) == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert sorted(warped(top_p=0.8)) == pytest.approx([0, 1 / 7, 2 / 7, 4 / 7])  # one of two that are alike stays
    assert warped(top_k=2, top_p=0.6) == pytest.approx([0, 1, 0, 0])
    assert warped(temperature=0.5, top_p=0.7) == pytest.approx([0, 1, 0, 0])


def test_draws_follow_the_cumulative_distribution():
    logp = torch.log(torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])).repeat(6, 1)
    uniform = torch.tensor([0.0, 0.249, 0.251, 0.749, 0.751, 1 - 2.0**-24])
    tokens, logprobs = draw(logp, uniform)
    assert tokens.tolist() == [1, 1, 3, 3, 4, 4]
    assert logprobs.exp().tolist() == pytest.approx([0.25, 0.25, 0.5, 0.5, 0.25, 0.25])


@pytest.mark.parametrize("family", QWEN3)
def test_equal_seeds_give_equal_tokens_whatever_the_batch_split(tiny_models, backends, family):
    backend = backends[family]
    prompts, seeds = prompts_of(backend), range(10, 16)
    together = backend.generate(prompts, NARROW, seeds)
    alone = [backend.generate([p], NARROW, [s])[0] for p, s in zip(prompts, seeds, strict=True)]
    in_fours = opened(tiny_models[family], "backend.args.generate_rows=4").generate(prompts, NARROW, seeds)
    assert [c.ids.tolist() for c in together] == [c.ids.tolist() for c in alone]
    assert [c.ids.tolist() for c in together] == [c.ids.tolist() for c in in_fours]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)


@pytest.mark.parametrize("family", QWEN3)
def test_rows_that_finish_leave_the_others_as_they_would_be_alone(backends, family):
    """One prompt many times: some completions end at once, others run to the limit."""
    backend, sampling = backends[family], Sampling(max_new_tokens=24, temperature=1.5)
    prompts = [p for p in prompts_of(backend)[:3] for _ in range(8)]
    together = backend.generate(prompts, sampling, range(24))
    lengths = [len(c.ids) for c in together]
    assert min(lengths) <= 12 and max(lengths) == 24
    for i in sorted(range(24), key=lengths.__getitem__)[::6]:  # those that end first, and others
        completion, alone = together[i], backend.generate([prompts[i]], sampling, [i])[0]
        assert completion.ids.tolist() == alone.ids.tolist()
        np.testing.assert_allclose(completion.logprobs, alone.logprobs, atol=NATS)
        ended = completion.ids[-1] == backend.tokenizer.end_id
        assert completion.stop_reason == ("stop" if ended else "length")
        assert backend.tokenizer.end_id not in completion.ids[:-1]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_text_beyond_the_models_positions_is_refused(backends, family):
    backend, prompt = backends[family], np.zeros(60, np.int32)
    assert backend.describe()["context"] == 64
    assert backend.generate([prompt], Sampling(max_new_tokens=4), [0])
    with pytest.raises(ModelError, match=r"60 tokens and sampling\.max_new_tokens = 5 go beyond the 64 tokens.*= 4 or"):
        backend.generate([prompt], Sampling(max_new_tokens=5), [0])


@pytest.mark.parametrize("way", ["ours", "transformers"])
def test_sampling_stops_at_the_first_of_several_ends(backends, way):
    backend = backends["llama"]
    parts = replace(backend.split, ours=way == "ours")
    prompts, plain = prompts_of(backend), Sampling(max_new_tokens=24, temperature=1.5)
    for ends in ((1,), (1, 9, 20)):
        drawn = sample(parts, prompts, plain, range(6), ends, 0)
        for completion in drawn:
            assert not np.isin(completion.ids[:-1], ends).any()
            assert (completion.stop_reason == "stop") == (completion.ids[-1] in ends)
    assert any(completion.ids[-1] in (9, 20) for completion in drawn)


def test_completions_that_ended_are_counted(backends):
    heard, backend = [], backends["llama"]
    with heard_by(lambda *count: heard.append(count)):
        backend.generate(prompts_of(backend), Sampling(max_new_tokens=24), range(6))
    counts = [done for what, done, total in heard if (what, total) == ("completions", 6)]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert heard[-1] == ("completions in all", 6, 6)


@pytest.mark.parametrize("family", QWEN3)
def test_micro_batches_change_neither_loss_nor_gradients_nor_the_update(tiny_models, family):
    whole, rows = (opened(tiny_models[family], f"backend.args.micro_batch_tokens={n}") for n in (100_000, 1))
    batch = scored_batch(whole, NARROW, samples=2)
    np.testing.assert_allclose(rows.score(batch, NARROW, ALGORITHM.needs).logprobs, batch.old.logprobs, atol=NATS)
    (one, expected), (other, moves) = plain_step(whole, batch), plain_step(rows, batch)
    for name, (total, count) in one.items():
        assert other[name] == (pytest.approx(total, rel=1e-4, abs=NATS * math.sqrt(count)), count)
    assert_equal_moves(moves, expected)


def test_the_gradient_is_scaled_down_to_the_largest_norm_and_reported_before(tiny_models):
    free, clipped = opened(tiny_models["llama"]), opened(tiny_models["llama"])
    start, batch = weights(free), scored_batch(free, NARROW)
    for backend in (free, clipped):
        backend.optimizer = torch.optim.SGD(list(backend.trainable().values()))
    norm, _ = step(free, batch, rate=0.1)["grad_norm"]
    assert step(clipped, batch, rate=0.1, max_grad_norm=norm / 4)["grad_norm"] == (pytest.approx(norm), 1.0)
    for name, moved in weights(clipped).items():
        torch.testing.assert_close(4 * (moved - start[name]), weights(free)[name] - start[name], rtol=1e-3, atol=1e-6)


def test_the_cosine_of_a_gradient_is_that_with_the_ones_before(tiny_models):
    first, *others = cosines(opened(tiny_models["llama"]))
    assert first is None
    assert others == pytest.approx([1.0, -1.0], abs=1e-4)


def test_products_of_gradients_are_those_of_the_updates(tiny_models, monkeypatch):
    backend = opened(tiny_models["llama"])
    products, norms = products_and_norms(backend)
    assert np.sqrt(np.diag(products)) == pytest.approx(norms, rel=1e-4)
    assert products[0, 1] == products[1, 0] and abs(products[0, 1]) < norms[0] * norms[1]
    monkeypatch.setattr("steadyrl.backends.torch.backend.MOST_COMPARED", 1000)
    assert backend.gradient_products([None, None], None) is None  # no room: nothing is even looked at


def test_a_gradient_that_is_not_finite_leaves_the_weights(tiny_models):
    backend = opened(tiny_models["llama"])
    batch = scored_batch(backend, NARROW)
    step(backend, batch)
    before = weights(backend)

    def broken(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"]).sum() * float("inf"), {}

    norm, _ = backend.step(batch, Update(broken, NARROW, ALGORITHM.needs, 1e-2, 1.0))["grad_norm"]
    assert not math.isfinite(norm)
    for name, parameter in weights(backend).items():
        assert torch.equal(parameter, before[name])


@pytest.mark.halved
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_policy_starts_as_its_reference(backends, family, way):
    old = scored_batch(backends[family], WAYS[way]).old
    np.testing.assert_allclose(old.kl_ref_exact, 0, atol=NATS)
    np.testing.assert_allclose(old.ref_logprobs, old.logprobs, atol=NATS)


def test_the_kl_to_the_whole_reference_counts_what_truncation_cut(tiny_models):
    """Of equal policies it is -log of the kept tokens' probability, worked out from the whole distributions."""
    backend = opened(tiny_models["llama"])
    batch = scored_batch(backend, NARROW)
    kept = iter(np.split(batch.kept.ids, batch.kept.lengths[batch.completion_mask].cumsum()))
    for row in range(len(TEXTS)):
        p = long_logprobs(tiny_models["llama"], batch, row, NARROW.temperature)
        for t in np.flatnonzero(batch.completion_mask[row]):
            mass = sum(math.exp(p[t - 1][i]) for i in next(kept))
            assert batch.old.kl_ref_full[row, t] == pytest.approx(-math.log(mass), abs=NATS)
    assert batch.old.kl_ref_full.max() > 0.05
    assert scored_batch(backend, PLAIN).old.kl_ref_full is None


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_training_moves_the_policy_and_leaves_the_reference(tiny_models, lora_rank):
    backend = opened(tiny_models["llama"], f"model.lora_rank={lora_rank}")
    batch = scored_batch(backend, NARROW)
    np.testing.assert_allclose(batch.old.kl_ref_exact, 0, atol=NATS)
    train(backend, range(2))
    after = backend.score(batch, NARROW, ALGORITHM.needs)
    np.testing.assert_array_equal(after.ref_logprobs, batch.old.ref_logprobs)
    assert np.abs(after.logprobs - batch.old.logprobs).max() > 0.01
    assert after.kl_ref_exact[batch.completion_mask].mean() > 1e-4


def test_exact_kl_and_entropy_are_sums_over_the_vocabulary(tiny_models, tmp_path):
    """Of a trained policy against the model it came from, each loaded afresh for one row at a time."""
    backend = opened(tiny_models["qwen2"])
    train(backend, range(2))
    backend.save(tmp_path)
    batch = scored_batch(backend, PLAIN, seed=5)
    for row in range(len(TEXTS)):
        p, q = (long_logprobs(folder, batch, row) for folder in (tmp_path / "policy", tiny_models["qwen2"]))
        for t in np.flatnonzero(batch.completion_mask[row]):
            divergence = sum(math.exp(a) * (a - b) for a, b in zip(p[t - 1], q[t - 1], strict=True))
            assert batch.old.kl_ref_exact[row, t] == pytest.approx(divergence, abs=NATS)
            assert batch.old.entropy[row, t] == pytest.approx(-sum(math.exp(a) * a for a in p[t - 1]), abs=NATS)
    assert batch.old.kl_ref_exact.max() > 1e-3


def test_an_adapter_is_sampled_and_trained_with_products_in_bfloat16(tiny_models):
    backend = opened(tiny_models["llama"], "model.lora_rank=4", "backend.precision=bf16")
    before = scored_batch(backend, PLAIN)
    train(backend, range(2))
    batch = scored_batch(backend, PLAIN)
    gap = np.abs(batch.old.logprobs - batch.sampling_logprobs)[batch.completion_mask]
    assert gap.mean() < 0.05
    assert before.tokens.shape != batch.tokens.shape or (before.tokens != batch.tokens).any(), "the adapter is sampled"


def test_a_value_head_with_a_rate_of_its_own_moves_by_that_rate(tiny_models, tmp_path):
    """A first step of Adam moves each weight by the rate; it does so after a checkpoint too."""
    head, plain = (opened(tiny_models["llama"], algorithm=replace(ALGORITHM, value_rate=rate)) for rate in (3e-3, 0.0))
    batch = scored_batch(head, NARROW)
    before = weights(head)
    step(head, batch, rate=0.0)
    after = weights(head)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"value_head.linear.weight", "value_head.linear.bias"}
    assert after["value_head.linear.bias"].abs().item() == pytest.approx(3e-3, rel=1e-3)
    head.save(tmp_path)
    plain.load(tmp_path)
    step(plain, batch, rate=0.0)
    assert all(torch.equal(weight, after[name]) for name, weight in weights(plain).items())


def test_lora_trains_the_adapter_and_the_value_head_only(tiny_models):
    backend = opened(tiny_models["llama"], "model.lora_rank=4")
    before = {name: p.detach().clone() for name, p in backend.model.named_parameters()}
    train(backend, range(2))
    changed = {name for name, p in backend.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert backend.value_head.linear.weight.abs().max() > 0


def test_the_adapter_follows_from_the_seed(tiny_models):
    one, same, other = (
        weights(opened(tiny_models["llama"], "model.lora_rank=4", f"run.seed={seed}")) for seed in (3, 3, 4)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", QWEN3)
def test_saved_and_loaded_it_goes_on_as_if_it_had_not_stopped(tiny_models, tmp_path, family):
    check_continuation(tiny_models[family], tmp_path)


def test_an_adapter_saved_and_loaded_goes_on_as_if_it_had_not_stopped(tiny_models, tmp_path):
    check_continuation(tiny_models["qwen3"], tmp_path, "model.lora_rank=4")


def test_weights_by_the_names_of_the_modules_are_loaded_without_a_second_model(tiny_models, tmp_path, monkeypatch):
    saved, other = opened(tiny_models["llama"]), opened(tiny_models["llama"])
    train(saved, range(2))
    saved.save(tmp_path)
    monkeypatch.setattr(type(other.model), "from_pretrained", None)
    other.load(tmp_path)
    assert all(torch.equal(w, weights(saved)[name]) for name, w in weights(other).items())


@pytest.mark.halved
@pytest.mark.parametrize("overrides", [(), ("model.lora_rank=4",), ("backend.args.weights=bf16",)])
@pytest.mark.parametrize("updates", [0, 2])
def test_updates_that_are_taken_back_leave_weights_and_moments_as_they_were(tiny_models, tmp_path, overrides, updates):
    backend = opened(tiny_models["llama"], *overrides)
    train(backend, range(updates))
    put_back = backend.remember()
    backend.save(tmp_path / "before")
    train(backend, range(2, 4))
    backend.save(tmp_path / "moved")
    put_back()
    backend.save(tmp_path / "after")
    files = {f.relative_to(tmp_path / "before") for f in (tmp_path / "before").rglob("*.safetensors")}
    before, moved, after = (
        {file: (tmp_path / name / file).read_bytes() for file in files} for name in ("before", "moved", "after")
    )
    assert before == after and len(files) >= 3
    assert moved != before


def test_an_update_that_ends_before_all_weights_are_moved_is_never_saved(tiny_models, tmp_path, monkeypatch):
    backend = opened(tiny_models["llama"])
    put_back = backend.remember()

    def fails():
        raise MemoryError

    monkeypatch.setattr(backend.optimizer, "step", fails)
    with pytest.raises(MemoryError):
        train(backend, range(1))
    with pytest.raises(CheckpointError, match="before all weights were moved"):
        backend.save(tmp_path)
    put_back()
    backend.save(tmp_path)


def test_a_model_whose_copies_take_too_long_is_not_remembered(tiny_models, monkeypatch):
    backend = opened(tiny_models["llama"])
    monkeypatch.setattr("steadyrl.backends.torch.backend.MOST_REMEMBERED", 1000)
    assert backend.remember() is None


def test_moments_are_loaded_into_those_that_are_there(tiny_models, tmp_path):
    backend = opened(tiny_models["llama"])
    train(backend, range(1))
    backend.save(tmp_path)
    before = {name: dict(backend.optimizer.state[p]) for name, p in backend._masters.named.items()}
    saved = {name: state["exp_avg"].clone() for name, state in before.items()}
    train(backend, range(1, 2))
    backend.load(tmp_path)
    for name, p in backend._masters.named.items():
        assert backend.optimizer.state[p]["exp_avg"] is before[name]["exp_avg"]
        assert torch.equal(backend.optimizer.state[p]["exp_avg"], saved[name])


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_weights_that_do_not_fit_are_refused_and_none_is_taken(tiny_models, tmp_path, change):
    backend = opened(tiny_models["llama"])
    backend.save(tmp_path)
    before = {name: w.clone() for name, w in weights(backend).items()}
    file = tmp_path / "policy" / "model.safetensors"
    tensors = {name: tensor + 1 for name, tensor in load_file(file).items()}
    name = "model.layers.0.mlp.up_proj.weight"
    if change == "missing":
        del tensors[name]
    else:
        tensors["strange" if change == "unknown" else name] = torch.zeros(3, 3)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="does not fit the model"):
        backend.load(tmp_path)
    assert all(torch.equal(w, before[name]) for name, w in weights(backend).items())


def check_continuation(folder, tmp_path, *overrides):
    unbroken, stopped, resumed = (opened(folder, *overrides, f"run.seed={seed}") for seed in (0, 0, 1))
    train(unbroken, range(2))
    train(stopped, [0])
    stopped.save(tmp_path)
    resumed.load(tmp_path)
    train(resumed, [1])
    expected, got = weights(unbroken), weights(resumed)
    assert expected.keys() == got.keys() and "value_head.linear.weight" in got
    for name in expected:
        assert torch.equal(got[name], expected[name]), name
    for name, parameter in resumed.trainable().items():
        moments = unbroken.optimizer.state[unbroken.trainable()[name]]
        assert {k: v.tolist() for k, v in resumed.optimizer.state[parameter].items()} == {
            k: v.tolist() for k, v in moments.items()
        }
    one, other = (scored_batch(b, NARROW, seed=9).old for b in (unbroken, resumed))
    np.testing.assert_array_equal(one.ref_logprobs, other.ref_logprobs)


def test_a_full_disk_is_one_clear_line_and_leaves_the_checkpoint_before(tiny_models, tmp_path):
    backend, run = opened(tiny_models["llama"]), RunDir(tmp_path)
    checkpoint.save(run, backend, State(step=2, updates=1), 1)
    with (
        files_end_after(1000),
        pytest.raises(AccessError, match=r"cannot write .*checkpoints.*; .* and resume"),
    ):
        checkpoint.save(run, backend, State(step=2, updates=2), 1)
    assert checkpoint.load(run, backend).updates == 1


def test_a_tokenizer_that_cannot_be_written_is_an_error_of_the_system(tiny_models, tmp_path):
    tokenizer = opened(tiny_models["llama"]).tokenizer.hf
    with files_end_after(1000), pytest.raises(OSError, match="File too large"), portable.writing():
        tokenizer.save_pretrained(tmp_path)


def test_before_the_first_step_there_is_nothing_of_the_optimizer_to_keep(tiny_models, tmp_path):
    stopped, resumed = opened(tiny_models["llama"]), opened(tiny_models["llama"])
    stopped.save(tmp_path)
    resumed.load(tmp_path)
    for backend in (stopped, resumed):
        train(backend, [0])
    expected, got = weights(stopped), weights(resumed)
    assert all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.halved
@pytest.mark.parametrize("name", ["policy/model.safetensors", "value_head.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_damaged_checkpoint_is_refused(tiny_models, tmp_path, name, damage):
    backend = opened(tiny_models["llama"])
    train(backend, [0])
    backend.save(tmp_path)
    file = tmp_path / name
    content = file.read_bytes()
    file.unlink()
    if damage == "cut short":
        file.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"safetensors.*earlier one"):
        opened(tiny_models["llama"]).load(tmp_path)


@pytest.mark.parametrize("change", ["another model", "a weight is missing", "a weight has another shape"])
def test_a_checkpoint_that_does_not_fit_the_model_is_refused(tiny_models, tmp_path, change):
    opened(tiny_models["gpt2" if change == "another model" else "llama"]).save(tmp_path)
    file = tmp_path / "policy" / "model.safetensors"
    tensors = load_file(file)
    if change == "a weight is missing":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    if change == "a weight has another shape":
        tensors["model.norm.weight"] = torch.zeros(5)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="does not fit"):
        opened(tiny_models["llama"]).load(tmp_path)


def test_a_saved_policy_is_a_model_folder(tiny_models, tmp_path):
    backend = opened(tiny_models["qwen3"])
    train(backend, range(2))
    backend.save(tmp_path)
    again = opened(tmp_path / "policy")
    one, other = (b.generate(prompts_of(b), PLAIN, range(6)) for b in (backend, again))
    for a, b in zip(one, other, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_array_equal(a.logprobs, b.logprobs)


def test_running_out_of_memory_changes_the_size_of_the_parts_and_not_the_result(tiny_models, caplog):
    wanted, tried = opened(tiny_models["llama"]), opened(tiny_models["llama"])
    batch = scored_batch(wanted, PLAIN)
    read, sizes = tried._read, []

    def hungry(part):
        sizes.append(part.tokens.size)
        if part.tokens.size > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return read(part)

    tried._read = hungry
    (one, expected), (other, moves) = plain_step(wanted, batch), plain_step(tried, batch)
    assert max(sizes) > 40 >= sizes[-1]
    assert "memory ran out with backend.args.micro_batch_tokens = 8192; going on with 4096" in caplog.text
    assert other["loss/total"] == pytest.approx(one["loss/total"], rel=1e-5)
    assert_equal_moves(moves, expected)
    found = tried.score(batch, PLAIN, frozenset()).logprobs
    np.testing.assert_allclose(found, wanted.score(batch, PLAIN, frozenset()).logprobs, atol=NATS)


def test_a_single_row_that_does_not_fit_is_said(tiny_models):
    backend = opened(tiny_models["llama"])
    batch = scored_batch(backend, PLAIN)

    def hungry(part):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried")

    backend._read = hungry
    with pytest.raises(ModelError, match=r"memory ran out with backend\.args\.micro_batch_tokens at 1"):
        step(backend, batch)


def test_an_error_that_is_no_lack_of_memory_is_raised_on(tiny_models):
    backend = opened(tiny_models["llama"])
    batch = scored_batch(backend, PLAIN)

    def broken(part):
        raise RuntimeError("shapes cannot be multiplied")

    backend._read = broken
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        step(backend, batch)


@pytest.mark.halved
@pytest.mark.parametrize("way", ["ours", "transformers"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_gradient_checkpointing_changes_no_result(tiny_models, monkeypatch, family, way):
    if way == "transformers":
        monkeypatch.setattr("steadyrl.backends.torch.backend.through_ours", lambda model, parts: parts)
    plain, frugal = opened(tiny_models[family]), opened(tiny_models[family], "backend.args.gradient_checkpointing=true")
    assert frugal.split.ours == (way == "ours")
    batch = scored_batch(plain, NARROW)
    calls = []
    inner = next(m for name, m in frugal.model.named_modules() if name.endswith(("q_proj", "c_attn")))
    inner.register_forward_hook(lambda *args: calls.append(torch.is_grad_enabled()))
    one, other = step(plain, batch), step(frugal, batch)
    assert len(calls) == 2, "once forward, once more on the way back"
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
    for name, weight in weights(frugal).items():
        torch.testing.assert_close(weight, weights(plain)[name], atol=1e-6, rtol=0)


def test_both_ways_of_reading_train_alike(tiny_models, monkeypatch):
    packed = opened(tiny_models["llama"])
    monkeypatch.setattr("steadyrl.backends.torch.backend.through_ours", lambda model, parts: parts)
    padded = opened(tiny_models["llama"])
    batch = scored_batch(padded, NARROW, samples=3)
    (one, expected), (other, moves) = plain_step(padded, batch), plain_step(packed, batch)
    for name, (total, count) in one.items():  # means: the rounding of a sum grows with what is summed
        assert other[name][0] / other[name][1] == pytest.approx(total / count, rel=1e-3, abs=rounding(1.0)), name
    assert_equal_moves(moves, expected)


def test_in_bfloat16_the_weights_stay_float32_and_the_sampler_near_the_trainer(tiny_models):
    backend = opened(tiny_models["qwen3"], "backend.precision=bf16")
    plain = opened(tiny_models["qwen3"])
    batch = scored_batch(backend, PLAIN)
    mask = batch.completion_mask
    gap = np.abs(batch.old.logprobs - batch.sampling_logprobs)[mask].mean()
    exact = plain.score(batch, PLAIN, frozenset()).logprobs
    assert 1e-4 < np.abs(batch.old.logprobs - exact)[mask].mean() < 0.2, "coarser than float32, and no more than that"
    assert gap < 0.2
    step(backend, batch)
    assert {p.dtype for p in backend.trainable().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("override", "precision"),
    [("backend.precision=fp32", "fp32"), ("backend.precision=bf16", "bf16"), ("backend.args.weights=bf16", "bf16")],
)
def test_a_backend_says_which_precision_it_computes_in(tiny_models, override, precision):
    assert opened(tiny_models["llama"], override).describe()["precision"] == precision


def test_weights_in_bfloat16_learn_from_updates_that_bfloat16_would_round_away(tiny_models):
    backend = opened(tiny_models["llama"], "backend.args.weights=bf16")
    batch = scored_batch(backend, PLAIN)
    before = weights(backend)
    for _ in range(8):
        step(backend, batch, PLAIN, rate=1e-5)  # a weight of 0.4 moves in steps of 2e-3 in bfloat16
    coarse = [name for name, p in backend.trainable().items() if p.dtype == torch.bfloat16]
    assert len(coarse) > 10
    moved = [(backend._masters.named[n] - before[n].float()).abs().median().item() for n in coarse]
    assert min(moved) > 1e-5, "eight steps of about 1e-5 add up in the float32 copies"
    for name in coarse:
        torch.testing.assert_close(backend.trainable()[name], backend._masters.named[name].bfloat16())


def test_float32_copies_are_saved_and_go_on_exactly(tiny_models, tmp_path):
    unbroken = opened(tiny_models["llama"], "backend.args.weights=bf16")
    batch = scored_batch(unbroken, PLAIN)
    step(unbroken, batch, PLAIN, rate=1e-5)
    unbroken.save(tmp_path)
    resumed = opened(tiny_models["llama"], "backend.args.weights=bf16")
    resumed.load(tmp_path)
    one, other = (step(backend, batch, PLAIN, rate=1e-5) for backend in (unbroken, resumed))
    assert one == other
    for name, master in unbroken._masters.named.items():
        assert torch.equal(master, resumed._masters.named[name]), name
    (tmp_path / "masters.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"masters\.safetensors"):
        resumed.load(tmp_path)


class Answering:
    """A task of three turns that answers with a sentence of its own each time."""

    max_turns, workers = 3, 1

    def episode(self, problem, seed):
        return Hearing()


class Hearing:
    def open(self):
        return "the dog"

    def step(self, text):
        return Turn("the cat sat on the mat", False)

    def close(self):
        return {}


@pytest.mark.parametrize("tokens", [1, 8192])
def test_rows_without_a_completion_change_neither_scores_nor_the_update(tiny_models, tokens):
    """An episode in which no turn fitted is a row of its prompt: alone in a micro-batch, or beside others."""
    found = []
    for empty in (0, 6):
        backend = opened(tiny_models["llama"], f"backend.args.micro_batch_tokens={tokens}")
        groups = collect(backend, PROBLEMS, 1, PLAIN, (0, 0))
        rollouts = [replace(group.rollouts[0], reward=float(i)) for i, group in enumerate(groups)]
        nothing = np.zeros(0)
        void = replace(
            rollouts[0], completion_ids=nothing, completion_mask=nothing.astype(bool), sampling_logprobs=nothing
        )
        rows = [void] * empty + rollouts
        batch = make_batch([Group(PROBLEMS[0], (rollout,)) for rollout in rows], backend.tokenizer.pad_id)
        batch = ALGORITHM.prepare(replace(batch, old=backend.score(batch, PLAIN, ALGORITHM.needs)), ALGORITHM.state)
        stats = step(backend, batch, PLAIN)
        found.append((batch.old.logprobs[empty:], stats["loss/total"][0], stats["grad_norm"][0]))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=NATS)
    assert found[0][1:] == pytest.approx(found[1][1:], rel=1e-4)


@pytest.mark.halved
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_trainer_reads_episodes_of_several_turns_as_the_sampler_wrote_them(backends, family, way):
    backend, sampling = backends[family], replace(WAYS[way], max_new_tokens=5)
    problems = [Problem("a", "the cat"), Problem("b", "on the mat the dog")]
    groups = collect(backend, problems, 3, sampling, (1, 1), environment=Environment(Answering(), 5))
    assert all(len(rollout.turns) == 3 for group in groups for rollout in group.rollouts)
    scored = [replace(g, rollouts=tuple(replace(r, reward=0.0) for r in g.rollouts)) for g in groups]
    batch = make_batch(scored, backend.tokenizer.pad_id)
    withheld = replace(batch, sampling_logprobs=np.where(batch.completion_mask, np.nan, 0.0).astype(np.float32))
    found = backend.score(withheld, sampling, frozenset())
    assert np.abs(found.logprobs - batch.sampling_logprobs)[batch.completion_mask].max() <= NATS
    assert (found.logprobs[~batch.completion_mask] == 0).all()
