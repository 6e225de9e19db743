from dataclasses import replace

import numpy as np
import pytest
import scipy
from scipy.special import log_softmax, softmax

from steadyrl.algorithms import ppo
from steadyrl.backends.toy import ToyBackend, truncation
from steadyrl.core.errors import CheckpointError
from steadyrl.core.protocols import Update
from steadyrl.core.types import Problem, Sampling, TokenScores
from steadyrl.loop.rollout.collect import collect
from steadyrl.maths.batch import loss_arrays, make_batch

ALGORITHM = ppo.build(
    ppo.Settings(entropy_coef=0.03, whiten_advantages=False, value_start="zero", value_learning_rate=0)
)
PROBLEMS = [Problem(letter, letter * 2) for letter in "abcde"]
PLAIN = Sampling(max_new_tokens=8)
NARROW = Sampling(max_new_tokens=8, temperature=0.7, top_k=9, top_p=0.8)
WAYS = {
    "plain": PLAIN,
    "hot": replace(PLAIN, temperature=1.7),
    "top-k": replace(PLAIN, top_k=5),
    "top-p": replace(PLAIN, top_p=0.6),
    "all three": NARROW,
}


def varied(seed=0):
    """A backend whose next-token distributions are far from uniform and far from its reference's."""
    backend = ToyBackend(seed)
    rng = np.random.default_rng(seed + 1)
    size = backend.tokenizer.size
    changes = rng.normal(0.0, 1.5, (size, size))
    changes[:, backend.tokenizer.pad_id] = 0.0
    backend.parameters = {"logits": backend.parameters["logits"] + changes, "values": rng.normal(0.0, 1.0, size)}
    return backend


def scored_batch(backend, sampling, seed=0):
    """A prepared batch of the backend's own completions, with rewards of all sizes."""
    groups = collect(backend, PROBLEMS, 2, sampling, (seed, 0))
    rewards = iter(np.random.default_rng(seed).normal(size=2 * len(PROBLEMS)))
    groups = [replace(g, rollouts=tuple(replace(r, reward=next(rewards)) for r in g.rollouts)) for g in groups]
    batch = make_batch(groups, backend.tokenizer.pad_id)
    return ALGORITHM.prepare(replace(batch, old=backend.score(batch, sampling, ALGORITHM.needs)), ALGORITHM.state)


def first_tokens(backend, prompt, sampling, count):
    prompts = [backend.tokenizer.encode_prompt(prompt)] * count
    drawn = backend.generate(prompts, replace(sampling, max_new_tokens=1), range(count))
    return np.bincount([c.ids[0] for c in drawn], minlength=backend.tokenizer.size)


@pytest.mark.parametrize("way", WAYS)
def test_the_sampler_and_score_agree_on_log_probabilities(way):
    batch = scored_batch(varied(), WAYS[way])
    np.testing.assert_allclose(batch.old.logprobs, batch.sampling_logprobs, atol=1e-6)
    assert batch.old.logprobs[batch.completion_mask].std() > 0.1


@pytest.mark.parametrize("way", WAYS)
def test_scores_are_those_of_the_distribution_that_was_sampled_from(way):
    """Worked out token by token from the parameters, with scipy."""
    backend, sampling = varied(), WAYS[way]
    batch = scored_batch(backend, sampling)
    kept = iter(np.split(batch.kept.ids, batch.kept.lengths[batch.completion_mask].cumsum()) if batch.kept else [])
    for row, t in zip(*np.nonzero(batch.completion_mask), strict=True):
        before, token = batch.tokens[row, t - 1], batch.tokens[row, t]
        ids = next(kept) if batch.kept else np.arange(backend.tokenizer.size)
        logp = log_softmax(backend.parameters["logits"][before, ids] / sampling.temperature)
        ref = log_softmax(backend._reference[before, ids] / sampling.temperature)
        at = ids.tolist().index(token)
        assert batch.old.logprobs[row, t] == pytest.approx(logp[at])
        assert batch.old.ref_logprobs[row, t] == pytest.approx(ref[at])
        assert batch.old.entropy[row, t] == pytest.approx(scipy.stats.entropy(np.exp(logp)))
        assert batch.old.kl_ref_exact[row, t] == pytest.approx(scipy.stats.entropy(np.exp(logp), np.exp(ref)))
        assert batch.old.values[row, t] == backend.parameters["values"][before]
        if batch.kept:
            whole = log_softmax(backend._reference[before] / sampling.temperature)[ids]
            assert batch.old.kl_ref_full[row, t] == pytest.approx((np.exp(logp) * (logp - whole)).sum())
    assert batch.kept or batch.old.kl_ref_full is None


def test_the_whole_vocabulary_of_the_reference_shows_a_collapse_that_the_kept_tokens_hide():
    """A policy that is sure of a token keeps it alone; to the reference it is one of eight, or rarer."""
    backend, sampling = varied(), Sampling(max_new_tokens=4, top_p=0.9)
    backend.parameters["logits"][:, 3] = 50.0
    batch = scored_batch(backend, sampling)
    at = batch.completion_mask
    before = batch.tokens[:, :-1][at[:, 1:]]
    np.testing.assert_allclose(batch.old.kl_ref_exact[at], 0.0, atol=1e-12)
    np.testing.assert_allclose(batch.old.kl_ref_full[at], -log_softmax(backend._reference, axis=1)[before, 3])


def test_raw_logprobs_change_what_is_measured_and_not_what_is_drawn():
    backend = varied()
    prompts = [backend.tokenizer.encode_prompt(p.prompt) for p in PROBLEMS]
    sampled = backend.generate(prompts, NARROW, range(5))
    raw = backend.generate(prompts, replace(NARROW, logprobs="raw"), range(5))
    for prompt, one, other in zip(prompts, sampled, raw, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        before = [prompt[-1], *other.ids[:-1]]
        expected = log_softmax(backend.parameters["logits"], axis=1)[before, other.ids]
        np.testing.assert_allclose(other.logprobs, expected, atol=1e-6)
        assert (one.logprobs > other.logprobs + 0.05).any()


def test_raw_scores_are_of_the_whole_softmax_at_temperature_one():
    backend = varied()
    batch = scored_batch(backend, replace(NARROW, logprobs="raw"))
    rows, columns = np.nonzero(batch.completion_mask)
    expected = log_softmax(backend.parameters["logits"], axis=1)[batch.tokens[rows, columns - 1]]
    chosen = batch.tokens[batch.completion_mask]
    np.testing.assert_allclose(batch.old.logprobs[batch.completion_mask], expected[np.arange(len(chosen)), chosen])
    np.testing.assert_allclose(batch.old.entropy[batch.completion_mask], scipy.stats.entropy(np.exp(expected), axis=1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("logprobs", ["sampled", "raw"])
def test_tokens_come_as_often_as_the_softmax_says(temperature, logprobs):
    backend = varied()
    counts = first_tokens(backend, "x", replace(PLAIN, temperature=temperature, logprobs=logprobs), 4000)
    p = softmax(backend.parameters["logits"][backend.tokenizer.encode_prompt("x")[0]] / temperature)
    rare = np.argsort(p)[:-12]  # chi-square wants some five expected in every class
    seen = [*np.delete(counts, rare), counts[rare].sum()]
    expected = [*np.delete(p, rare) * 4000, p[rare].sum() * 4000]
    assert scipy.stats.chisquare(seen, expected).pvalue > 1e-3


def test_truncated_sampling_draws_the_kept_tokens_in_their_old_proportions():
    backend = varied()
    counts = first_tokens(backend, "x", replace(PLAIN, top_k=4), 4000)
    logits = backend.parameters["logits"][backend.tokenizer.encode_prompt("x")[0]]
    best = np.argsort(logits)[-4:]
    assert counts.sum() == counts[best].sum()
    assert scipy.stats.chisquare(counts[best], softmax(logits[best]) * 4000).pvalue > 1e-3


def test_padding_is_never_sampled_however_hot():
    backend = varied()
    assert first_tokens(backend, "x", replace(PLAIN, temperature=10.0), 4000)[backend.tokenizer.pad_id] == 0


# Probabilities 1/2, 1/4, 1/8, 1/8 in an order of their own; exact in binary.
QUARTERS = np.log([0.125, 0.5, 0.125, 0.25])


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.4, [1]), (0.5, [1]), (0.51, [1, 3]), (0.74, [1, 3]), (0.76, [0, 1, 3]), (0.9, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    assert np.flatnonzero(truncation(QUARTERS, Sampling(1, top_p=top_p))).tolist() == kept


def test_top_p_counts_within_what_top_k_left():
    """Top-2 leaves 2/3 and 1/3: the first alone reaches 0.6, which it would not of the whole."""
    assert np.flatnonzero(truncation(QUARTERS, Sampling(1, top_k=2, top_p=0.6))).tolist() == [1]
    assert np.flatnonzero(truncation(QUARTERS, Sampling(1, top_p=0.6))).tolist() == [1, 3]


def test_equal_seeds_give_equal_tokens_whatever_else_is_in_the_batch():
    backend = varied()
    prompts = [backend.tokenizer.encode_prompt(text) for text in ("ab", "c", "deeee", "f", "g", "h")]
    together = backend.generate(prompts, NARROW, range(6))
    alone = [backend.generate([p], NARROW, [seed])[0] for p, seed in zip(prompts, range(6), strict=True)]
    assert [c.ids.tolist() for c in together] == [c.ids.tolist() for c in alone]
    other = backend.generate(prompts, NARROW, range(6, 12))
    assert [c.ids.tolist() for c in together] != [c.ids.tolist() for c in other]


def test_a_completion_ends_with_the_end_token_or_at_its_limit():
    backend = varied()
    backend.parameters["logits"][:, backend.tokenizer.end_id] += 4.0
    prompts = [backend.tokenizer.encode_prompt("x")] * 50
    for completion in backend.generate(prompts, replace(PLAIN, max_new_tokens=3), range(50)):
        ends = completion.ids == backend.tokenizer.end_id
        assert not ends[:-1].any()
        assert completion.stop_reason == ("stop" if ends[-1] else "length")
        assert ends[-1] or len(completion.ids) == 3


@pytest.mark.parametrize("way", [*WAYS, "raw"])
def test_the_gradient_of_a_step_is_that_of_the_loss(way):
    """Against central differences of the loss in numpy, over the scores of shifted parameters."""
    sampling = replace(NARROW, logprobs="raw") if way == "raw" else WAYS[way]
    backend = varied()
    batch = scored_batch(backend, sampling)
    rng = np.random.default_rng(5)
    backend.parameters = {n: p + rng.normal(0.0, 0.1, p.shape) for n, p in backend.parameters.items()}
    captured = {}
    backend._adam = lambda gradients, *settings: captured.update(gradients) or 0.0
    count = float(batch.completion_mask.sum())
    stats_of_step = backend.step(batch, Update(ALGORITHM.loss, sampling, ALGORITHM.needs, 0.1, 1.0))

    def loss():
        found = backend.score(batch, sampling, frozenset({"values"}))
        new = TokenScores(logprobs=found.logprobs, entropy=found.entropy, values=found.values)
        return ALGORITHM.loss(np, new, loss_arrays(batch), count)[0]

    assert stats_of_step["loss/total"] == (pytest.approx(loss()), 1.0)
    for name in ("logits", "values"):
        parameter, gradient = backend.parameters[name], captured[name]
        largest = np.argsort(-np.abs(gradient), axis=None)[:20]
        chosen = [*largest, *rng.integers(0, parameter.size, 20)]
        for at in (np.unravel_index(i, parameter.shape) for i in chosen):
            before = parameter[at]
            parameter[at] = before + 1e-5
            up = loss()
            parameter[at] = before - 1e-5
            down = loss()
            parameter[at] = before
            assert gradient[at] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-9)
        assert np.abs(gradient).max() > 1e-3


def test_the_first_step_moves_every_parameter_by_the_learning_rate_against_its_gradient():
    """Adam divides a first gradient by its own size; what has no gradient stays."""
    backend = varied()
    batch = scored_batch(backend, PLAIN)
    before = {name: p.copy() for name, p in backend.parameters.items()}
    backend.step(batch, Update(ALGORITHM.loss, PLAIN, ALGORITHM.needs, 0.01, 1.0))
    moved = backend.parameters["values"] - before["values"]
    seen = np.unique(batch.tokens[:, :-1][batch.completion_mask[:, 1:]])
    np.testing.assert_allclose(np.abs(moved[seen]), 0.01, rtol=1e-3)
    assert np.delete(moved, seen).tolist() == [0.0] * (len(moved) - len(seen))


def test_sums_of_a_step_are_per_token_of_the_whole_minibatch():
    backend = varied()
    batch = scored_batch(backend, PLAIN)
    found = backend.step(batch, Update(ALGORITHM.loss, PLAIN, ALGORITHM.needs, 0.01, 1.0))
    arrays = (batch.advantages, batch.old.values, batch.returns)
    advantages, values, returns = (array[batch.completion_mask] for array in arrays)
    total, count = found["loss/policy"]  # at ratio 1 it is minus the mean advantage
    assert total / count == pytest.approx(-advantages.mean())
    total, count = found["loss/value"]
    assert total / count == pytest.approx(((values - returns) ** 2).mean() / 2)


def test_the_gradient_is_scaled_down_to_the_largest_norm_and_reported_before():
    free, clipped = varied(), varied()
    batch = scored_batch(free, PLAIN)
    norm, _ = free.step(batch, Update(ALGORITHM.loss, PLAIN, ALGORITHM.needs, 0.01, 1e9))["grad_norm"]
    found = clipped.step(batch, Update(ALGORITHM.loss, PLAIN, ALGORITHM.needs, 0.01, norm / 4))
    assert found["grad_norm"] == (pytest.approx(norm), 1.0)
    np.testing.assert_allclose(clipped._moments["m.logits"] * 4, free._moments["m.logits"], rtol=1e-6)


def test_the_cosine_of_a_gradient_is_that_with_the_ones_before():
    backend = varied()
    batch = scored_batch(backend, PLAIN)

    def negated(*arguments):
        per_token, measured = ALGORITHM.loss(*arguments)
        return -per_token, measured

    losses = (ALGORITHM.loss, ALGORITHM.loss, negated)
    first, *others = [backend.step(batch, Update(loss, PLAIN, ALGORITHM.needs, 0.0, 1e9)) for loss in losses]
    assert "grad_cosine" not in first, "nothing was before"
    assert [found["grad_cosine"] for found in others] == [(pytest.approx(1.0), 1.0), (pytest.approx(-1.0), 1.0)]


def test_a_gradient_that_is_not_finite_leaves_the_weights():
    backend = varied()
    batch = scored_batch(backend, PLAIN)
    before = {name: p.copy() for name, p in backend.parameters.items()}

    def broken(xp, new, arrays, count):
        return (new.logprobs * arrays["mask"]).sum() * float("nan"), {}

    norm, _ = backend.step(batch, Update(broken, PLAIN, ALGORITHM.needs, 0.1, 1.0))["grad_norm"]
    assert not np.isfinite(norm)
    for name, parameter in backend.parameters.items():
        np.testing.assert_array_equal(parameter, before[name])


def test_saved_and_loaded_it_goes_on_as_if_it_had_not_stopped(tmp_path):
    def train(backend, seeds):
        for seed in seeds:
            batch = scored_batch(backend, NARROW, seed)
            backend.step(batch, Update(ALGORITHM.loss, NARROW, ALGORITHM.needs, 0.1, 1.0))

    unbroken, stopped, resumed = varied(), varied(), ToyBackend(seed=99)
    train(unbroken, range(4))
    train(stopped, range(2))
    stopped.save(tmp_path)
    resumed.load(tmp_path)
    train(resumed, range(2, 4))
    for name, parameter in unbroken.parameters.items():
        np.testing.assert_array_equal(resumed.parameters[name], parameter)
    np.testing.assert_array_equal(
        scored_batch(resumed, PLAIN).old.ref_logprobs, scored_batch(unbroken, PLAIN).old.ref_logprobs
    )


@pytest.mark.parametrize("damage", ["missing", "cut short", "empty"])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    varied().save(tmp_path)
    (file,) = tmp_path.iterdir()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: 5000 if damage == "cut short" else 0])
    with pytest.raises(CheckpointError, match="earlier checkpoint"):
        ToyBackend().load(tmp_path)


def test_a_position_without_kept_ids_was_not_cut():
    """A batch may mix rollouts of truncated sampling with others."""
    backend = varied()
    cut, whole = (collect(backend, PROBLEMS[:1], 1, way, (0, 0))[0] for way in (NARROW, PLAIN))
    groups = [replace(g, rollouts=tuple(replace(r, reward=0.0) for r in g.rollouts)) for g in (cut, whole)]
    mixed = make_batch(groups, backend.tokenizer.pad_id)
    alone = make_batch(groups[1:], backend.tokenizer.pad_id)
    width = int(alone.lengths[0])
    np.testing.assert_array_equal(
        backend.score(mixed, replace(NARROW, temperature=1.0), frozenset()).logprobs[1, :width],
        backend.score(alone, PLAIN, frozenset()).logprobs[0],
    )
