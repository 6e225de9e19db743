"""Corrections for rollouts of another policy, by hand-computed cases and by what they must not change."""

import itertools
import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms import grpo, ppo
from steadyrl.backends import tape
from steadyrl.core.config import resolve
from steadyrl.core.errors import ConfigError
from steadyrl.core.metrics import Clock
from steadyrl.core.types import Batch, TokenScores
from steadyrl.loop.checkpoint import State
from steadyrl.loop.rollout.off_policy import CORRECTIONS, correct, corrected, importance_metrics
from steadyrl.loop.train import gather
from steadyrl.maths import losses
from steadyrl.maths.batch import make_batch
from tests import needs

NAMES = sorted(CORRECTIONS)


def arrays_of(old, sampling, advantages=1.0, mask=None):
    """The arrays of one or several rows, from probabilities."""
    old, sampling = np.log(np.atleast_2d(old)), np.log(np.atleast_2d(sampling))
    mask = np.ones(old.shape, bool) if mask is None else np.atleast_2d(mask)
    return {
        "mask": mask,
        "old_logprobs": old,
        "sampling_logprobs": sampling,
        "advantages": np.broadcast_to(np.asarray(advantages, float), old.shape),
    }


def weights(name, *given, new=None, **more):
    arrays = arrays_of(*given, **more)
    return CORRECTIONS[name](np, arrays["old_logprobs"] if new is None else np.log(np.atleast_2d(new)), arrays)


# what each of them does, by hand


def test_a_token_counts_by_its_ratio_up_to_two():
    found = weights("token", [0.2, 0.3, 0.1, 0.9], [0.4, 0.2, 0.1, 0.1])
    np.testing.assert_allclose(found, [[0.5, 1.5, 1.0, 2.0]], rtol=1e-12)


def test_a_sequence_counts_by_the_product_of_its_ratios_up_to_two():
    old, sampling = [[0.2, 0.3, 0.5], [0.8, 0.6, 0.5]], [[0.4, 0.2, 0.1], [0.4, 0.2, 0.5]]
    found = weights("sequence", old, sampling, mask=[[True, True, False], [True, True, True]])
    np.testing.assert_allclose(found, [[0.75, 0.75, 1.0], [2.0, 2.0, 2.0]], rtol=1e-12)


@pytest.mark.parametrize(("mean", "kept"), [(0.9899, 0), (0.9901, 1), (1.0, 1), (1.0099, 1), (1.0101, 0)])
def test_the_geometric_mask_keeps_exactly_the_rows_in_its_band(mean, kept):
    # The first ratio is off by a factor, and the second by its inverse: only their mean counts.
    old = [[0.4 * mean * 1.5, 0.3 * mean / 1.5, 0.9]]
    found = weights("geometric", old, [[0.4, 0.3, 0.1]], mask=[[True, True, False]])
    np.testing.assert_array_equal(found, [[kept, kept, 1]])


def test_icepop_keeps_the_ratios_in_its_band_and_drops_the_others():
    found = weights("icepop", [0.0499, 0.0501, 0.499, 0.501], [0.1, 0.1, 0.1, 0.1])
    np.testing.assert_allclose(found, [[0.0, 0.501, 4.99, 0.0]], rtol=1e-12)


@pytest.mark.parametrize(
    ("advantage", "new", "kept"),
    [(1.0, 0.61, 0), (1.0, 0.59, 1), (1.0, 0.01, 1), (-1.0, 0.19, 0), (-1.0, 0.21, 1), (-1.0, 0.99, 1)],
)
def test_dppo_drops_what_has_moved_far_enough_in_the_wanted_direction(advantage, new, kept):
    found = weights("dppo", [0.5], [0.4], new=[new], advantages=advantage)
    np.testing.assert_allclose(found, [[1.25 * kept]], rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_where_sampler_and_trainer_agree_every_weight_is_exactly_one(name):
    p = np.random.default_rng(0).uniform(0.01, 0.99, (5, 7))
    np.testing.assert_array_equal(weights(name, p, p, advantages=-1.0), np.ones((5, 7)))


# what they are for: expectations under the trainer's policy from samples of the sampler's


def two_tokens():
    """Every completion of two tokens of three, with its probabilities per token under trainer and sampler, [9, 2]."""
    rng = np.random.default_rng(3)
    first = rng.dirichlet([5, 5, 5], 2)  # trainer, sampler
    second = rng.dirichlet([5, 5, 5], (2, 3))  # by the first token
    pairs = list(itertools.product(range(3), repeat=2))
    return [np.array([[first[k, a], second[k, a, b]] for a, b in pairs]) for k in (0, 1)]


def test_sequence_weights_make_expectations_of_the_sampler_those_of_the_trainer(monkeypatch):
    monkeypatch.setattr(losses, "MAX_WEIGHT", 1e6)  # truncation is the bias that buys variance
    trainer, sampler = two_tokens()
    worth = np.arange(9.0) ** 2
    seen = sampler.prod(axis=1) * weights("sequence", trainer, sampler)[:, 0] * worth
    assert seen.sum() == pytest.approx(float(trainer.prod(axis=1) @ worth), rel=1e-12)
    assert seen.sum() != pytest.approx(float(sampler.prod(axis=1) @ worth), rel=1e-2)


def test_truncated_sequence_weights_count_rare_completions_for_less_and_none_for_more():
    trainer = np.array([[0.8, 0.9], [0.8, 0.1], [0.2, 0.5], [0.2, 0.5]])  # of two tokens of two
    weight = weights("sequence", trainer, np.full((4, 2), 0.5))[:, 0]
    np.testing.assert_allclose(weight, [2.0, 0.32, 0.4, 0.4], rtol=1e-12)  # the first would be 0.72 / 0.25 = 2.88
    assert 0.25 * weight.sum() == pytest.approx(1.0 - 0.22)  # of the mass, what was truncated is missing


def test_the_corrected_gradient_of_the_samplers_choices_is_the_gradient_of_the_trainers_reward():
    """One token of four; the exact gradient of the expected reward is taken by finite differences."""
    logits, worth = np.array([0.3, -0.5, 0.1, 0.4]), np.array([1.0, -2.0, 0.5, 3.0])
    q = np.array([0.3, 0.15, 0.2, 0.35])

    def p(z):
        return np.exp(z) / np.exp(z).sum()

    exact = np.array([(p(logits + d) - p(logits - d)) @ worth / 2e-6 for d in 1e-6 * np.eye(4)])
    arrays = arrays_of(p(logits)[:, None], q[:, None], worth[:, None])
    new = tape.Tensor(arrays["old_logprobs"])

    def loss(xp, scores, given, count):
        policy, _ = losses.clipped_policy(
            xp, scores.logprobs - given["old_logprobs"], given["advantages"], clip_low=0.2, clip_high=0.2
        )
        return losses.reduce(xp, policy, q[:, None], count), {}  # each choice as often as the sampler makes it

    total, _ = corrected(loss, ["token"])(tape, TokenScores(logprobs=new), arrays, 1.0)
    total.backward()
    by_logit = -(new.grad.T @ (np.eye(4) - p(logits)))[0]
    np.testing.assert_allclose(by_logit, exact, atol=1e-8)


# what they must not change


def scored(seed=0, advantages=True, agree=True, shape=(4, 6)):
    """A scored batch of completions from column 2 on."""
    rng = np.random.default_rng(seed)
    mask = np.broadcast_to(np.arange(shape[1]) >= 2, shape)
    sampling = np.where(mask, rng.uniform(-3, -0.1, shape), 0.0).astype(np.float32)
    old = sampling.astype(float) if agree else np.where(mask, rng.uniform(-3, -0.1, shape), 0.0)
    return Batch(
        tokens=np.ones(shape, np.int32),
        lengths=np.full(shape[0], shape[1], np.int32),
        completion_mask=mask,
        sampling_logprobs=sampling,
        rewards=np.zeros(shape[0]),
        groups=np.zeros(shape[0], np.int32),
        old=TokenScores(logprobs=old),
        advantages=np.where(mask, rng.normal(size=shape), 0.0) if advantages else None,
    )


@pytest.mark.parametrize("name", NAMES)
def test_where_both_agree_a_correction_changes_no_bit_of_the_gradient_in_torch(name):
    torch = needs.package("torch")
    batch = scored(1)
    arrays = {
        "mask": torch.tensor(batch.completion_mask),
        "old_logprobs": torch.tensor(batch.sampling_logprobs),
        "sampling_logprobs": torch.tensor(batch.sampling_logprobs),
        "advantages": torch.tensor(batch.advantages.astype(np.float32)),
    }
    loss = grpo.build(grpo.Settings(kl_coef=0.0)).loss
    gradients = []
    for one in (loss, corrected(loss, [name])):
        new = torch.tensor(batch.sampling_logprobs + np.float32(0.01)).requires_grad_()
        one(torch, TokenScores(logprobs=new), arrays, 16.0)[0].backward()
        gradients.append(new.grad.numpy())
    assert gradients[0].any()
    np.testing.assert_array_equal(*gradients)


@pytest.mark.mlx
@pytest.mark.parametrize("name", NAMES)
def test_where_both_agree_a_correction_changes_no_bit_of_the_gradient_in_mlx(name):
    import mlx.core as mx

    batch = scored(1)
    arrays = {
        "mask": mx.array(batch.completion_mask),
        "old_logprobs": mx.array(batch.sampling_logprobs),
        "sampling_logprobs": mx.array(batch.sampling_logprobs),
        "advantages": mx.array(batch.advantages.astype(np.float32)),
    }
    loss, start = grpo.build(grpo.Settings(kl_coef=0.0)).loss, mx.array(batch.sampling_logprobs + np.float32(0.01))
    found = [
        np.array(mx.grad(lambda x, one=one: one(mx, TokenScores(logprobs=x), arrays, 16.0)[0])(start))
        for one in (loss, corrected(loss, [name]))
    ]
    assert found[0].any()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", NAMES)
def test_where_both_agree_the_toy_learns_the_same_with_every_correction(toy, name):
    session = toy("algorithm.name=grpo")
    groups, _, _ = gather(session, State(algorithm={}), Clock())
    batch = make_batch(groups, session.backend.tokenizer.pad_id)
    old = session.backend.score(batch, session.sampling, frozenset({"ref_logprobs"}))
    batch = session.algorithm.prepare(replace(batch, old=old, sampling_logprobs=old.logprobs), {})
    found = [
        session.backend.gradients(batch, replace(session.update_at(0.0), loss=loss))[0]["logits"]
        for loss in (session.algorithm.loss, corrected(session.algorithm.loss, [name]))
    ]
    assert found[0].any()
    np.testing.assert_array_equal(*found)


def test_a_correction_leaves_the_value_loss_alone():
    algorithm, rng = ppo.build(ppo.Settings()), np.random.default_rng(5)
    batch = scored(5, agree=False)
    arrays = {
        "mask": batch.completion_mask,
        "old_logprobs": batch.old.logprobs,
        "sampling_logprobs": batch.sampling_logprobs,
        "advantages": batch.advantages,
        "old_values": rng.normal(size=(4, 6)),
        "returns": rng.normal(size=(4, 6)),
    }
    new = TokenScores(logprobs=batch.old.logprobs, values=arrays["old_values"])
    (_, plain), (_, weighed) = (
        loss(np, new, arrays, 16.0) for loss in (algorithm.loss, corrected(algorithm.loss, ["icepop"]))
    )
    assert weighed["loss/value"] == plain["loss/value"]
    assert weighed["loss/policy"] != plain["loss/policy"]


def test_weights_and_dropped_tokens_are_counted_under_the_mask_alone():
    arrays = arrays_of([[0.1, 0.6, 0.2]], [[0.4, 0.4, 0.2]], mask=[[True, True, False]])
    loss = grpo.build(grpo.Settings(kl_coef=0.0)).loss
    _, sums = corrected(loss, ["icepop"])(np, TokenScores(logprobs=arrays["old_logprobs"]), arrays, 2.0)
    assert sums["correction/weight"] == pytest.approx(1.5)  # 0 and 0.6 / 0.4
    assert sums["correction/masked"] == 1


def test_a_corrected_loss_can_be_sent_to_another_process():
    arrays = arrays_of([[0.1, 0.6, 0.2]], [[0.4, 0.4, 0.2]], [[1.0, -1.0, 2.0]])
    loss = corrected(grpo.build(grpo.Settings(kl_coef=0.0)).loss, ["token", "geometric"])
    new = TokenScores(logprobs=arrays["old_logprobs"])
    assert pickle.loads(pickle.dumps(loss))(np, new, arrays, 3.0) == loss(np, new, arrays, 3.0)


# when


def test_auto_corrects_nothing_where_both_agree():
    algorithm, state = grpo.build(grpo.Settings()), State()
    assert correct(algorithm, scored(), "auto", state) is algorithm
    assert not state.correcting


def test_auto_begins_at_the_step_that_measures_a_difference_and_says_so_once(caplog):
    algorithm, state = grpo.build(grpo.Settings()), State(step=7)
    with caplog.at_level(logging.WARNING):
        assert correct(algorithm, scored(agree=False), "auto", state).loss is not algorithm.loss
        assert correct(algorithm, scored(), "auto", state).loss is not algorithm.loss  # it stays on
    assert state.correcting
    (line,) = caplog.messages
    assert "step 7: sampler and trainer differ by" in line and "'token'" in line


def test_off_never_corrects():
    algorithm = grpo.build(grpo.Settings())
    assert correct(algorithm, scored(agree=False), "off", State()) is algorithm


def test_auto_leaves_algorithms_without_advantages_and_demonstrations_alone():
    algorithm = grpo.build(grpo.Settings())
    shown = scored(agree=False)
    shown = replace(shown, sampling_logprobs=np.full_like(shown.sampling_logprobs, np.nan))
    for batch in (scored(agree=False, advantages=False), shown):
        assert correct(algorithm, batch, "auto", State()) is algorithm
        with pytest.raises(ConfigError, match="expected 'auto' or 'off'"):
            correct(algorithm, batch, "token", State())


@pytest.mark.parametrize(
    "text", ["token,sequence", "icepop,dppo", "tokens", "", "token,token", "auto,token", "token, "]
)
def test_corrections_that_cannot_be_had_are_refused(text):
    with pytest.raises(ConfigError, match=r"update\.correction.*at most one of 'token', 'sequence', 'icepop', 'dppo'"):
        resolve({"rewards": {"x:y": 1.0}}, [f"update.correction='{text}'"])


# what is measured


def test_effective_sample_sizes_by_hand():
    batch = scored(shape=(2, 4))
    ratio = np.log([[1, 1, 1, 3], [1, 1, 1, 1]])
    batch = replace(batch, old=TokenScores(logprobs=batch.sampling_logprobs + ratio))
    found = importance_metrics(batch)
    assert found["importance/mean"] == pytest.approx(6 / 4)
    assert found["importance/ess"] == pytest.approx(36 / (4 * 12))  # weights 1, 3, 1, 1
    assert found["importance/ess_seq"] == pytest.approx(16 / (2 * 10))  # weights 3, 1
