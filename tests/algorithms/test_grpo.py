from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms import grpo
from steadyrl.core.config import validate
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Batch, Score, TokenScores
from steadyrl.loop.train import Watch, train
from steadyrl.maths.batch import loss_arrays, loss_count, take_rows

# Two groups of two rows; two completion tokens each, but the last row has one.
MASK = np.array([[0, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 0]], bool)
OLD = np.where(MASK, -1.0, 0.0)
REF = np.where(MASK, -1.5, 0.0)


def built(**settings):
    return grpo.build(grpo.Settings(**settings))


def four_rows(rewards, groups=(0, 0, 1, 1)):
    return Batch(
        tokens=np.ones((4, 3), np.int32),
        lengths=np.array([3, 3, 3, 2], np.int32),
        completion_mask=MASK,
        sampling_logprobs=OLD.astype(np.float32),
        rewards=np.array(rewards, float),
        groups=np.array(groups, np.int32),
        old=TokenScores(logprobs=OLD, ref_logprobs=REF),
    )


def test_every_token_of_a_rollout_gets_its_deviation_from_the_group_in_standard_deviations():
    """Rewards 1 and 3: mean 2, sample deviation sqrt(2), so -1 / sqrt(2) and +1 / sqrt(2); equal rewards give 0."""
    advantages = built().prepare(four_rows([1, 3, 5, 5]), {}).advantages
    side = 0.5**0.5
    np.testing.assert_allclose(advantages, [[0, -side, -side], [0, side, side], [0, 0, 0], [0, 0, 0]], atol=1e-4)


def test_the_loss_adds_the_kl_to_the_reference_at_every_token():
    """No change since sampling: the policy part is minus the mean advantage, here 0; k3 at p / ref = e^0.5."""
    batch = built().prepare(four_rows([1, 3, 5, 5]), {})
    new = TokenScores(logprobs=OLD)
    loss, sums = built(kl_coef=0.2).loss(np, new, loss_arrays(batch), float(MASK.sum()))
    k3 = np.exp(-0.5) - 1 + 0.5
    assert float(loss) == pytest.approx(0.2 * k3)
    assert float(sums["clip_fraction"]) == float(sums["kl_old_k3"]) == 0.0


def test_without_a_kl_coefficient_no_reference_is_needed():
    free = built(kl_coef=0.0)
    assert (free.needs, built(kl_coef=0.1).needs) == (frozenset(), frozenset({"ref_logprobs"}))
    batch = free.prepare(four_rows([1, 3, 5, 5]), {})
    batch = replace(batch, old=TokenScores(logprobs=OLD))
    loss, _ = free.loss(np, TokenScores(logprobs=OLD), loss_arrays(batch), float(MASK.sum()))
    assert float(loss) == pytest.approx(0.0)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_rollouts_without_others_of_their_problem_have_no_advantage(scale):
    """Rewards 1, 3, 4 and 8, the first two of one problem: 1 and 3 are 1 from their mean, 4 and 8 stand alone."""
    prepared = built(scale=scale).prepare(four_rows([1, 3, 4, 8], groups=(0, 0, 1, 2)), {})
    assert [bool(row.any()) for row in prepared.advantages] == [True, True, False, False]


def test_scales_by_hand():
    """Rewards 1, 3 and 0, 6: -1, 1 and -3, 3 from the mean; over sqrt(2) and sqrt(18), over sqrt(5), as they are."""
    batch = four_rows([1, 3, 0, 6])
    first = MASK.argmax(axis=1)

    def found(**settings):
        return built(**settings).prepare(batch, {}).advantages[np.arange(4), first]

    np.testing.assert_allclose(found(scale="none"), [-1, 1, -3, 3])
    np.testing.assert_allclose(found(scale="batch"), np.array([-1, 1, -3, 3]) / 5**0.5, rtol=1e-6)
    np.testing.assert_allclose(found(scale="group"), np.array([-1, 1, -1, 1]) / 2**0.5, atol=1e-4)


MEANS = [
    ({"mean": "token"}, (2 * 1 + 2 * 2 + 2 * 3 + 1 * 4) / 7),
    ({"mean": "sequence"}, (1 + 2 + 3 + 4) / 4),
    ({"mean": "constant", "length_limit": 10}, (2 * 1 + 2 * 2 + 2 * 3 + 1 * 4) / 10 / 4),
]


@pytest.mark.parametrize(("settings", "expected"), MEANS)
def test_means_of_the_loss_by_hand(settings, expected):
    """Ratio 1 and advantages -1, -2, -3, -4: a loss of 1, 2, 3, 4 at each token of rows of 2, 2, 2 and 1."""
    algorithm = built(kl_coef=0.0, **settings)
    batch = algorithm.prepare(four_rows([1, 3, 0, 6]), {})
    batch = replace(batch, advantages=np.where(MASK, [[-1.0], [-2.0], [-3.0], [-4.0]], 0.0))
    new = TokenScores(logprobs=OLD)
    whole, _ = algorithm.loss(np, new, loss_arrays(batch), loss_count(batch))
    assert float(whole) == pytest.approx(expected)

    parts = []
    for rows in ([3, 0], [2], [1]):  # micro-batches add up, however the minibatch is cut
        part = take_rows(batch, np.array(rows))
        scores = TokenScores(logprobs=part.old.logprobs)
        parts.append(float(algorithm.loss(np, scores, loss_arrays(part), loss_count(batch))[0]))
    assert sum(parts) == pytest.approx(expected)


def test_the_overlong_penalty_enters_the_advantages_of_its_group():
    """Limit 2, buffer 1: two tokens cost 1, one costs nothing; rewards 5, 5 become 4, 5."""
    got = built(scale="none", length_limit=2, overlong_buffer=1).prepare(four_rows([1, 3, 5, 5]), {})
    np.testing.assert_allclose(got.advantages, [[0, -1, -1], [0, 1, 1], [0, -0.5, -0.5], [0, 0.5, 0]])


# What each form of the KL pays at p / ref = e^0.5 and p / old = 2, per token.
FORMS = [("k3", np.exp(-0.5) - 0.5), ("k2", 0.125), ("weighted_k3", 2 * (np.exp(-0.5) - 0.5))]


@pytest.mark.parametrize(("form", "expected"), FORMS)
def test_forms_of_the_kl_by_hand(form, expected):
    algorithm = built(kl_coef=0.2, kl_form=form)
    batch = algorithm.prepare(four_rows([1, 1, 5, 5]), {})  # advantages 0: the KL alone
    batch = replace(batch, old=TokenScores(logprobs=OLD - np.log(2) * MASK, ref_logprobs=REF))
    loss, _ = algorithm.loss(np, TokenScores(logprobs=OLD), loss_arrays(batch), loss_count(batch))
    assert float(loss) == pytest.approx(0.2 * expected)


def test_surrogates_and_ratios_by_hand():
    """Row 0 alone counts: A = 1, token ratios 2 and 1/2, so a geometric mean of 1; clip range [0.8, 1.2].

    clip, token: -1.2, -0.5. weight, token: -1.2 * (1 + log(2 / 1.2)), -0.5. clip, sequence: -1, -1.
    """
    batch = replace(four_rows([1, 3, 5, 5]), advantages=np.where(MASK & (np.arange(4) == 0)[:, None], 1.0, 0.0))
    new = TokenScores(logprobs=OLD + np.log([[1, 2, 0.5], [1, 1, 1], [1, 1, 1], [1, 1, 1]]))

    def found(**settings):
        loss, sums = built(kl_coef=0.0, **settings).loss(np, new, loss_arrays(batch), 1.0)
        return float(loss), float(sums["clip_fraction"])

    assert found() == pytest.approx((-1.7, 1.0))
    assert found(surrogate="weight") == pytest.approx((-1.7 - 1.2 * np.log(2 / 1.2), 1.0))
    assert found(ratio="sequence") == pytest.approx((-2.0, 0.0))


def test_unequal_clip_bounds_by_hand():
    """DAPO's: ratio 2 at A = 1 is worth 1.28, ratio 1/2 at A = -2 costs 2 * 0.8; by token, and by sequence alike."""
    advantages = np.zeros(MASK.shape)
    advantages[0, 1], advantages[1, 1] = 1.0, -2.0
    batch = replace(four_rows([1, 3, 5, 5]), advantages=advantages)
    new = TokenScores(logprobs=OLD + np.where(MASK, np.log([[2], [0.5], [1], [1]]), 0.0))
    for ratio in ("token", "sequence"):
        algorithm = built(kl_coef=0.0, clip_low=0.2, clip_high=0.28, ratio=ratio)
        loss, _ = algorithm.loss(np, new, loss_arrays(batch), 1.0)
        assert float(loss) == pytest.approx(-1.28 + 2 * 0.8)
    one_sided = built(kl_coef=0.0, clip_low=0.2, clip_high=0.28)
    for row, expected in ((0, -1.28), (1, 1.6)):
        alone = replace(batch, advantages=np.where(np.arange(4)[:, None] == row, advantages, 0.0))
        assert float(one_sided.loss(np, new, loss_arrays(alone), 1.0)[0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"mean": "constant"}, "length_limit above 0"), ({"overlong_buffer": 3, "length_limit": 2}, "at least overlong")],
)
def test_a_missing_length_limit_is_refused_with_where_to_find_it(settings, message):
    with pytest.raises(ConfigError, match=rf"algorithm\.args.*{message}"):
        validate(grpo.Settings, settings, "algorithm.args")


def rewards_of(run):
    return [record["reward/mean"] for record in run.metrics()]


# The presets of docs/algorithms/grpo.md, and the algorithms beside them.
PRESETS = {
    "grpo": (),
    "dr_grpo": ("scale=none", "mean=constant", "length_limit=6", "kl_coef=0.0"),
    "dapo": ("clip_high=0.28", "groups=signal", "kl_coef=0.0", "length_limit=6", "overlong_buffer=2"),
    "gspo": ("ratio=sequence", "mean=sequence", "clip_low=0.02", "clip_high=0.03", "kl_coef=0.0"),
    "cispo": ("surrogate=weight", "clip_high=4.0", "scale=batch", "kl_coef=0.0"),
    "k2": ("kl_form=k2", "scale=batch"),
    "weighted_k3": ("kl_form=weighted_k3",),
}


def overrides(preset):
    return ("algorithm.name=grpo", *(f"algorithm.args.{setting}" for setting in PRESETS[preset]))


# Those that differ most: the ratio of a sequence, and weights in place of clips.
LEARNING = [
    (name, 0) if name in ("grpo", "gspo", "cispo") else pytest.param(name, 0, marks=pytest.mark.weekly)
    for name in PRESETS
]


@pytest.mark.parametrize(("preset", "seed"), [*LEARNING, pytest.param("grpo", 1, marks=pytest.mark.weekly)])
def test_every_variant_learns_to_write_the_letter_a(toy, tmp_path, preset, seed):
    session = toy(*overrides(preset), "run.steps=30", "rollout.samples_per_prompt=8", f"run.seed={seed}")
    run = RunDir(tmp_path / "run")
    assert train(replace(session, heldout=[]), run) == "finished"
    rewards = rewards_of(run)
    assert np.mean(rewards[:3]) < 0.15
    assert np.mean(rewards[-5:]) > 0.35


RESUMED = [pytest.param(name, marks=() if name in ("grpo", "dapo", "gspo") else pytest.mark.weekly) for name in PRESETS]


@pytest.mark.parametrize("preset", RESUMED)
def test_a_resumed_run_equals_the_unbroken_one(toy, tmp_path, preset):
    settings = (*overrides(preset), "run.steps=6", "rollout.samples_per_prompt=4")
    whole, broken = RunDir(tmp_path / "whole"), RunDir(tmp_path / "broken")
    train(toy(*settings), whole)
    done = []
    assert train(toy(*settings), broken, 0, Watch(step=done.append, stop=lambda: len(done) == 3)) == "interrupted"
    assert train(toy(*settings), broken, 1) == "finished"
    assert rewards_of(broken) == rewards_of(whole)
    assert [r["grad_norm"] for r in broken.metrics()] == [r["grad_norm"] for r in whole.metrics()]
    assert len({r["grad_norm"] for r in whole.metrics()}) == 6


MORE = [pytest.param(name, marks=pytest.mark.weekly) for name in ("dr_grpo", "cispo")]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("preset", ["gspo", pytest.param("weighted_k3", marks=pytest.mark.weekly), *MORE])
def test_on_torch_the_cut_into_micro_batches_changes_nothing(toy, tmp_path, tiny_models, preset):
    norms = []
    for tokens in (8192, 1):
        session = toy(
            *overrides(preset), "backend.name=torch", "backend.device=cpu", "backend.threads=1", "run.steps=2",
            f"model.path={tiny_models['llama']}", f"backend.args.micro_batch_tokens={tokens}",
            "rollout.prompts_per_step=2",
            # Adam moves a weight whose gradient is rounding by the whole rate, up on one processor and down on another.
            "update.learning_rate=1e-5", "rollout.samples_per_prompt=4",
        )  # fmt: skip
        run = RunDir(tmp_path / f"run{tokens}")
        train(replace(session, heldout=[]), run)
        norms.append([record["grad_norm"] for record in run.metrics()])
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-3)
    assert norms[0][0] > 0


def test_a_step_in_which_nothing_differs_goes_on(toy, tmp_path):
    """A reward of 0 for everything: no gradient but the KL's, and no end of the run."""
    run = RunDir(tmp_path / "run")
    session = toy("algorithm.name=grpo", "algorithm.args.groups=signal", "run.steps=2", reward="toy_rewards:nothing")
    assert train(session, run) == "finished"
    assert [record["groups/no_signal"] for record in run.metrics()] == [1.0, 1.0]


@pytest.mark.parametrize("mean", ["token", "sequence", "constant"])
def test_the_parts_of_the_loss_add_up_to_what_is_differentiated(toy, tmp_path, mean):
    session = toy(
        "algorithm.name=grpo", f"algorithm.args.mean={mean}", "algorithm.args.kl_coef=0.3",
        "algorithm.args.length_limit=60", "sampling.max_new_tokens=60", "run.steps=2", "update.learning_rate=0.1",
        "update.minibatches=2",
    )  # fmt: skip
    run = RunDir(tmp_path / mean)
    train(session, run)
    for row in run.metrics():
        # Both sides are sums of the same float64 terms, at most 64 rollouts of 60 tokens.
        assert row["loss/total"] == pytest.approx(row["loss/policy"] + 0.3 * row["loss/kl"], rel=1e-9, abs=1e-11)
    assert row["loss/kl"] > 0


def scored_alone_after(steps, until):
    """Return a session's reward that scores one rollout of each problem only, from a step on and before another."""

    def reward(pairs):
        reward.step += 1
        alone = steps < reward.step <= until
        return [
            Score(None, unscored="mostly returned None") if alone and i % 2 else Score(float(len(r.text) + i))
            for i, (_, r) in enumerate(pairs)
        ]

    reward.step = 0
    return reward


def open_scored_alone(toy, until):
    session = toy("algorithm.name=grpo", "algorithm.args.kl_coef=0", "rollout.prompts_per_step=2", "run.steps=14")
    (term,) = session.terms
    return replace(session, heldout=(), terms=[replace(term, reward=scored_alone_after(2, until))])


def test_a_run_goes_on_through_steps_with_nothing_to_compare_and_counts_them(toy, tmp_path, caplog):
    run = RunDir(tmp_path / "run")
    assert train(open_scored_alone(toy, 11), run) == "finished"
    lines = run.metrics()
    assert [line["groups/uncompared"] for line in lines] == [0.0] * 2 + [1.0] * 9 + [0.0] * 3
    assert [line["advantage/std"] > 0 for line in lines] == [True] * 2 + [False] * 9 + [True] * 3
    assert (
        "step 2: only 1 of 2 rollouts of each problem could be scored; most often: mostly returned None" in caplog.text
    )


def test_a_run_ends_with_a_checkpoint_where_ten_steps_in_a_row_had_nothing_to_compare(toy, tmp_path):
    run = RunDir(tmp_path / "run")
    with pytest.raises(
        DataError, match=r"only 1 of 2 rollouts .* mostly returned None\. So it was in 10 steps in a row"
    ):
        train(open_scored_alone(toy, 99), run)
    assert (len(run.metrics()), run.checkpoints()) == (11, [11])


@pytest.mark.parametrize("name", ["grpo", "rloo", "rwr", "rlaif"])
def test_an_algorithm_that_compares_rollouts_is_refused_single_ones_at_the_door(toy, name):
    with pytest.raises(
        ConfigError, match=rf"'{name}' compares .* rollout\.samples_per_prompt is 1; set it to 2 or more"
    ):
        toy(f"algorithm.name={name}", "rollout.samples_per_prompt=1")


def test_credit_by_turn_compares_turns_within_the_group():
    """Two episodes of three and two turns, worth 4 and 1; the first turns earned 1 and 0 of it. No scaling, gamma 0.5.

    From the turns on: 1 + 0.5 * (0 + 0.5 * 3) = 1.75, 1.5, 3; and 0 + 0.5 * 1 = 0.5, 1. Means: 1.125, 1.25; the third
    turn has nothing to be compared with.
    """
    mask = np.array([[0, 1, 1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 1, 0, 0, 0]], bool)
    batch = Batch(
        tokens=np.ones((2, 8), np.int32),
        lengths=np.array([8, 5], np.int32),
        completion_mask=mask,
        sampling_logprobs=np.zeros((2, 8), np.float32),
        rewards=np.array([4.0, 1.0]),
        turn_rewards=np.array([[0, 0, 1.0, 0, 0, 0, 0, 0], [0] * 8]),
        groups=np.zeros(2, np.int32),
        old=TokenScores(logprobs=np.where(mask, -1.0, 0.0), ref_logprobs=np.where(mask, -1.0, 0.0)),
    )
    prepared = built(credit="turn", gamma=0.5, scale="none").prepare(batch, {})
    expected = [[0, 0.625, 0.625, 0, 0.25, 0, 0, 0], [0, -0.625, 0, -0.25, -0.25, 0, 0, 0]]
    np.testing.assert_allclose(prepared.advantages, expected, atol=1e-12)
    by_episode = built(scale="none").prepare(batch, {}).advantages
    assert set(by_episode[0, mask[0]]) == {1.5}  # the shares of turns are not read


def test_a_discount_of_turns_needs_credit_by_turn():
    with pytest.raises(ConfigError, match="credit = 'turn' for a gamma"):
        validate(grpo.Settings, {"gamma": 0.5}, "algorithm.args")
