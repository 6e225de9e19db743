from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from steadyrl.algorithms import ppo
from steadyrl.core.errors import ConfigError
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Batch, TokenScores
from steadyrl.loop.train import train
from steadyrl.maths.batch import loss_arrays


def built(**settings):
    return ppo.build(ppo.Settings(**{"value_start": "zero", **settings}))


# Two rows. The first: one prompt token, two completion tokens; the second: two prompt tokens, one completion token.
MASK = np.array([[0, 1, 1], [0, 0, 1]], bool)
OLD = TokenScores(
    logprobs=np.array([[0, -1.0, -2.0], [0, 0, -1.0]]),
    ref_logprobs=np.array([[0, -1.5, -1.0], [0, 0, -1.2]]),  # log-ratios 0.5 and -1; 0.2
    values=np.array([[9, 0.2, 0.6], [9, 9, 0.4]]),
    kl_ref_exact=np.array([[9, 0.1, 0.3], [9, 9, 0.2]]),
)


def two_rows(rewards=(1.0, -1.0)):
    return Batch(
        tokens=np.ones((2, 3), np.int32),
        lengths=np.array([3, 3], np.int32),
        completion_mask=MASK,
        sampling_logprobs=OLD.logprobs.astype(np.float32),
        rewards=np.array(rewards),
        groups=np.array([0, 1], np.int32),
        old=OLD,
    )


def test_advantages_and_returns_by_hand():
    """kl_coef 0.5, lambda 0.5, gamma 1.

    Token rewards: -0.5 * 0.5 = -0.25, then 1 + 0.5 * 1 = 1.5; in the other row -1 - 0.5 * 0.2 = -1.1.
    Deltas: -0.25 + 0.6 - 0.2 = 0.15, then 1.5 - 0.6 = 0.9; -1.1 - 0.4 = -1.5.
    Advantages: 0.15 + 0.5 * 0.9 = 0.6, then 0.9; -1.5. Returns: plus the values 0.2, 0.6; 0.4.
    """
    prepared = built(lam=0.5, whiten_advantages=False).prepare(two_rows(), {"kl_coef": 0.5})
    np.testing.assert_allclose(prepared.advantages, [[0, 0.6, 0.9], [0, 0, -1.5]], atol=1e-12)
    np.testing.assert_allclose(prepared.returns, [[0, 0.8, 1.5], [0, 0, -1.1]], atol=1e-12)


def test_the_discount_counts_per_token():
    """gamma 0.5, lambda 1, no penalty: returns 0.5 * 1 and 1; -1. Advantages: less 0.2, 0.6; 0.4."""
    prepared = built(gamma=0.5, lam=1.0, whiten_advantages=False).prepare(two_rows(), {"kl_coef": 0.0})
    np.testing.assert_allclose(prepared.returns, [[0, 0.5, 1.0], [0, 0, -1.0]], atol=1e-12)
    np.testing.assert_allclose(prepared.advantages, [[0, 0.3, 0.4], [0, 0, -1.4]], atol=1e-12)


def test_the_penalty_is_paid_at_every_token():
    """With lambda 0 and equal values an advantage is the token's own reward less the step between values."""
    ppo = built(lam=0.0, whiten_advantages=False)
    free, paid = (ppo.prepare(two_rows(), {"kl_coef": coef}).advantages for coef in (0.0, 2.0))
    np.testing.assert_allclose((free - paid)[MASK], [1.0, -2.0, 0.4], atol=1e-12)  # k1 is 0.5, -1.0, 0.2


def test_whitened_advantages_have_mean_zero_and_deviation_one_and_the_raw_ones_are_kept():
    raw = built(lam=0.5, whiten_advantages=False).prepare(two_rows(), {"kl_coef": 0.5}).advantages
    prepared = built(lam=0.5).prepare(two_rows(), {"kl_coef": 0.5})
    assert prepared.advantages[MASK].mean() == pytest.approx(0, abs=1e-12)
    assert prepared.advantages[MASK].std() == pytest.approx(1)
    assert np.argsort(prepared.advantages[MASK]).tolist() == [2, 0, 1]
    np.testing.assert_allclose(prepared.measured["advantages_raw"], raw)
    np.testing.assert_allclose(prepared.returns[MASK], [0.8, 1.5, -1.1])


def test_whitened_token_rewards_have_deviation_one_around_their_mean():
    """With lambda 1 the sum of a row's token rewards is its first return."""
    prepared = built(lam=1.0, whiten_rewards=True).prepare(two_rows(), {"kl_coef": 0.0})
    # token rewards 0, 1, -1: mean 0, deviation sqrt(2/3)
    np.testing.assert_allclose(prepared.returns[MASK], np.array([1, 1, -1]) * np.sqrt(1.5), rtol=1e-6)


def loss_of(settings, new, batch):
    per_batch, sums = built(**settings).loss(np, new, loss_arrays(batch), float(MASK.sum()))
    return float(per_batch), {name: float(total) for name, total in sums.items()}


def test_the_loss_by_hand():
    """Ratios 1, 2 and 1/2 with advantages 1, 1 and -1, values one off their returns, entropies 0.3.

    Policy: -1, then -1.4 (clipped at 1.4), then 0.9 (clipped at 0.9): -1.5. Value: 3 * 1/2. Over three tokens.
    """
    batch = replace(
        two_rows(),
        advantages=np.array([[0, 1.0, 1.0], [0, 0, -1.0]]),
        returns=OLD.values + np.where(MASK, 1.0, 0.0),
    )
    new = TokenScores(
        logprobs=OLD.logprobs + np.where(MASK, np.log([[1, 1, 2], [1, 1, 0.5]]), 0),
        values=OLD.values,
        entropy=np.where(MASK, 0.3, 0.0),
    )
    value, sums = loss_of({"value_coef": 0.1, "entropy_coef": 0.5, "clip_low": 0.1, "clip_high": 0.4}, new, batch)
    assert value == pytest.approx((-1.5 + 0.1 * 1.5 - 0.5 * 0.9) / 3)
    assert sums == pytest.approx(
        {
            "loss/policy": -1.5,
            "loss/value": 1.5,
            "clip_fraction": 2.0,
            "clip_fraction_value": 0.0,
            "kl_old_k1": 0.0,  # -log 1 - log 2 - log 1/2
            "kl_old_k3": (1 - np.log(2)) + (-0.5 + np.log(2)),
        },
        abs=1e-12,
    )


def test_entropy_is_asked_for_only_where_it_is_rewarded():
    assert built().needs == {"ref_logprobs", "values"}
    assert built(entropy_coef=0.01).needs == {"ref_logprobs", "values", "entropy"}


def test_an_adaptive_coefficient_rises_above_the_target_and_falls_below():
    """At most 0.2 / horizon of itself per step: 2 % at horizon 10."""
    ppo = built(kl_coef=0.1, kl_control="adaptive", kl_target=6.0, kl_horizon=10.0)
    assert ppo.state == {"kl_coef": 0.1}
    assert ppo.adapt({"kl_coef": 0.1}, {"kl_ref_k1_seq": 60.0}) == {"kl_coef": pytest.approx(0.102)}
    assert ppo.adapt({"kl_coef": 0.1}, {"kl_ref_k1_seq": 6.6}) == {"kl_coef": pytest.approx(0.101)}
    assert ppo.adapt({"kl_coef": 0.1}, {"kl_ref_k1_seq": 6.0}) == {"kl_coef": pytest.approx(0.1)}
    assert ppo.adapt({"kl_coef": 0.1}, {"kl_ref_k1_seq": 0.0}) == {"kl_coef": pytest.approx(0.098)}


def test_an_adaptive_coefficient_stays_where_kl_is_unknown():
    ppo = built(kl_coef=0.1, kl_control="adaptive")
    assert ppo.adapt({"kl_coef": 0.1}, {"reward/mean": 1.0}) == {"kl_coef": 0.1}


def test_a_fixed_coefficient_stays():
    assert built(kl_coef=0.1).adapt({"kl_coef": 0.1}, {"kl_ref_k1_seq": 60.0}) == {"kl_coef": 0.1}


def test_an_adaptive_coefficient_of_zero_stays_zero():
    assert built(kl_coef=0, kl_control="adaptive").adapt({"kl_coef": 0}, {"kl_ref_k1_seq": 60.0}) == {"kl_coef": 0}


# Learning, on the toy backend: a table of next letters that starts out nearly uniform.


@pytest.fixture
def trained(toy, tmp_path):
    """Return a function that trains a session and returns its lines of metrics."""
    runs = []

    def trained(*overrides, reward="toy_rewards:share_of_a", change=None):
        session = toy("rollout.prompts_per_step=16", *overrides, reward=reward)
        if change:
            change(session.backend)
        runs.append(RunDir(tmp_path / f"run{len(runs)}"))
        train(replace(session, heldout=()), runs[-1])
        return runs[-1].metrics()

    return trained


def test_the_values_begin_at_the_mean_return_of_the_first_batch_and_learn_from_there():
    """Lambda 1, no penalty: the tokens' returns are 4, 4 and 1, their mean 3; the head itself predicts nothing yet."""
    algorithm = built(value_start="mean_return", lam=1.0, kl_coef=0, whiten_advantages=False)
    blank = replace(OLD, values=np.zeros(MASK.shape))
    first = algorithm.prepare(replace(two_rows((4.0, 1.0)), old=blank), algorithm.state)
    np.testing.assert_allclose(first.old.values[MASK], 3.0)
    np.testing.assert_allclose(first.advantages[MASK], [1.0, 1.0, -2.0])
    _, sums = algorithm.loss(np, blank, loss_arrays(first), 3.0)
    assert float(sums["loss/value"]) == pytest.approx((1 + 1 + 4) / 2)
    numbers = algorithm.adapt(algorithm.state, {"value/mean": 3.0})
    later = algorithm.prepare(replace(two_rows((40.0, 10.0)), old=replace(OLD, values=0.5 * MASK)), numbers)
    np.testing.assert_allclose(later.old.values[MASK], 3.5)
    assert algorithm.adapt(numbers, {"value/mean": 9.0}) == numbers


def test_the_value_head_learns_alone_in_its_warmup_and_at_its_own_rate(toy, tmp_path):
    settings = ("algorithm.args.value_learning_rate=0.02", "algorithm.args.value_warmup_steps=3", "run.steps=2")
    session = toy("rollout.prompts_per_step=16", *settings, reward="toy_rewards:share_of_a")
    before = {name: array.copy() for name, array in session.backend.parameters.items()}
    train(session, RunDir(tmp_path / "run"))
    after = session.backend.parameters
    assert (after["logits"] == before["logits"]).all()
    updates = 2 * session.config.update.epochs * session.config.update.minibatches
    assert 0.02 < np.abs(after["values"] - before["values"]).max() <= 0.021 * updates


def test_a_warmup_of_a_head_without_a_rate_of_its_own_is_refused(toy):
    with pytest.raises(ConfigError, match=r"value_warmup_steps is 4.*value_learning_rate = 0.*set it to 1e-4"):
        toy("algorithm.args.value_warmup_steps=4", "algorithm.args.value_learning_rate=0")


def test_a_resumed_run_keeps_the_level_of_its_values(trained, toy, tmp_path):
    whole = trained("run.steps=6", "run.checkpoint_every=3")
    for attempt, steps in enumerate((3, 6)):
        settings = ("rollout.prompts_per_step=16", f"run.steps={steps}", "run.checkpoint_every=3")
        train(toy(*settings, reward="toy_rewards:share_of_a"), RunDir(tmp_path / "cut"), attempt)
    assert RunDir(tmp_path / "cut").metrics()[-1]["value/mean"] == whole[-1]["value/mean"]
    assert whole[-1]["algorithm/value_level"] == whole[0]["value/mean"] != 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.weekly)])
def test_ppo_learns_to_write_the_letter_a(trained, seed):
    lines = trained("run.steps=35", f"run.seed={seed}", "algorithm.args.kl_coef=0.01")
    assert lines[0]["reward/mean"] < 0.15
    assert np.mean([line["reward/mean"] for line in lines[-5:]]) > 0.7


def test_the_values_start_at_zero_and_come_to_the_returns(trained):
    learning = ("algorithm.args.value_coef=1.0", "algorithm.args.value_learning_rate=0")
    lines = trained("run.steps=45", "algorithm.args.kl_coef=0", "algorithm.args.value_start=zero", *learning)
    assert lines[0]["value/mean"] == 0
    assert lines[-1]["value/mean"] == pytest.approx(lines[-1]["return/mean"], abs=0.2)
    assert lines[-1]["return/mean"] > 0.5


def test_a_large_coefficient_keeps_the_policy_near_its_reference(trained):
    settings = ("run.steps=30", "rollout.samples_per_prompt=4", "update.learning_rate=0.05")
    free = trained(*settings, "algorithm.args.kl_coef=0")
    held = trained(*settings, "algorithm.args.kl_coef=5")
    assert free[-1]["kl_ref_exact"] > 0.8
    assert held[-1]["kl_ref_exact"] < 0.1


def test_the_penalty_alone_brings_the_policy_back(trained):
    """No reward at all, and a start far from the reference."""

    def shift(backend):
        shifts = np.random.default_rng(0).normal(0.0, 1.0, backend.parameters["logits"].shape)
        backend.parameters["logits"][:, : backend.tokenizer.pad_id] += shifts[:, : backend.tokenizer.pad_id]

    settings = ("run.steps=25", "rollout.samples_per_prompt=4", "update.learning_rate=0.05")
    lines = trained(*settings, "algorithm.args.kl_coef=1", reward="toy_rewards:nothing", change=shift)
    assert lines[0]["kl_ref_exact"] > 0.3
    assert lines[-1]["kl_ref_exact"] < lines[0]["kl_ref_exact"] / 2


def test_rewarded_entropy_stays_higher(trained):
    settings = ("run.steps=25", "algorithm.args.kl_coef=0")
    bare, rewarded = trained(*settings), trained(*settings, "algorithm.args.entropy_coef=0.5")
    assert bare[0]["entropy"] == rewarded[0]["entropy"]
    assert rewarded[-1]["entropy"] > bare[-1]["entropy"] + 1.0


def test_an_adaptive_coefficient_follows_the_kl_of_a_run(trained):
    lines = trained(
        "run.steps=30", "algorithm.args.kl_coef=0.001", "algorithm.args.kl_control=adaptive",
        "algorithm.args.kl_target=1.0", "algorithm.args.kl_horizon=1",
    )  # fmt: skip
    for line, after in pairwise(lines):
        rises = line["kl_ref_k1_seq"] > 1.0
        assert (after["algorithm/kl_coef"] > line["algorithm/kl_coef"]) == rises
    assert {line["kl_ref_k1_seq"] > 1.0 for line in lines} == {True, False}


def test_epochs_end_early_once_the_policy_is_too_far_from_the_old_one(trained):
    settings = ("run.steps=3", "update.epochs=10", "update.minibatches=2", "update.learning_rate=1.0")
    for line in trained(*settings, "update.kl_old_limit=0.05"):
        assert 2 <= line["updates"] < 20  # the first update is made at ratio 1
        assert line["epochs"] == line["updates"] / 2
    for line in trained(*settings, "update.kl_old_limit=1e9"):
        assert (line["updates"], line["epochs"]) == (20, 10)


# Three turns of 2, 1 and 1 tokens; the rest is the prompt and what the environment wrote.
TURNS = np.array([[0, 1, 1, 0, 1, 0, 0, 1]], bool)


def three_turns(logprobs, ref, values):
    """Return an episode worth 4, of which its first turn earned 1."""
    return Batch(
        tokens=np.ones((1, 8), np.int32),
        lengths=np.array([8], np.int32),
        completion_mask=TURNS,
        sampling_logprobs=np.zeros((1, 8), np.float32),
        rewards=np.array([4.0]),
        turn_rewards=np.array([[0, 0, 1.0, 0, 0, 0, 0, 0]]),
        groups=np.array([0], np.int32),
        old=TokenScores(logprobs=logprobs, ref_logprobs=ref, values=values),
    )


def test_credit_by_turn_of_a_hand_computed_episode_of_three_turns():
    """kl_coef 0.5, gamma 0.9, lambda 0.5; log-ratios to the reference 0.2, 0.2; 0; -1.

    Turn rewards: 1 - 0.1 - 0.1 = 0.8; 0; 3 + 0.5 = 3.5. Values before the turns: 0.5, 1, 2.
    Deltas: 3.5 - 2 = 1.5; 0.9 * 2 - 1 = 0.8; 0.8 + 0.9 - 0.5 = 1.2.
    Advantages: 1.5; 0.8 + 0.45 * 1.5 = 1.475; 1.2 + 0.45 * 1.475 = 1.86375. Returns: plus the values.
    """
    logprobs, ref = np.full((1, 8), -1.0), np.array([[0, -1.2, -1.2, 0, -1.0, 0, 0, 0.0]])
    values = np.array([[0, 0.5, 77.0, 0, 1.0, 0, 0, 2.0]])
    batch = three_turns(*(np.where(TURNS, x, np.nan) for x in (logprobs, ref, values)))  # NaN where nothing is read
    settings = {"gamma": 0.9, "lam": 0.5, "whiten_advantages": False}
    prepared = built(credit="turn", **settings).prepare(batch, {"kl_coef": 0.5})
    np.testing.assert_allclose(prepared.advantages, [[0, 1.86375, 1.86375, 0, 1.475, 0, 0, 1.5]], atol=1e-12)
    np.testing.assert_allclose(prepared.returns, [[0, 2.36375, 2.36375, 0, 2.475, 0, 0, 3.5]], atol=1e-12)
    by_token = built(**settings).prepare(batch, {"kl_coef": 0.0})
    assert by_token.advantages[0, 7] == 4 - 2  # the whole reward at the last token
    whitened = built(credit="turn").prepare(batch, {"kl_coef": 0.5}).advantages
    assert whitened[TURNS].mean() == pytest.approx(0, abs=1e-12)  # over the tokens of the policy alone
    assert not whitened[~TURNS].any()


def test_what_the_environment_wrote_is_in_no_loss_by_turn():
    """Log-probs and values at the environment's tokens change, and loss and sums do not."""
    algorithm, base = built(credit="turn"), np.full((1, 8), -1.0)
    batch = three_turns(base, base, np.zeros((1, 8)))
    arrays = loss_arrays(algorithm.prepare(batch, {"kl_coef": 0.0}))
    losses = []
    for noise in (0.0, 3.0):
        new = TokenScores(logprobs=np.where(TURNS, -1.1, noise), values=np.where(TURNS, 0.3, noise))
        losses.append(algorithm.loss(np, new, arrays, 4.0))
    assert losses[0][0] == losses[1][0] != 0
    assert losses[0][1] == losses[1][1]
