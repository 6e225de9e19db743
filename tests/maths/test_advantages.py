import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.maths.advantages import (
    above_mean_of_kept,
    at_every_token,
    at_last_token,
    at_turn_ends,
    batch_scale,
    best_of_group,
    exponential_weights,
    gae,
    group_baseline,
    group_scale,
    leave_one_out,
    overlong_penalty,
    penalised_rewards,
    scale_to_unit_std,
    turn_advantages,
    turn_gae,
    turn_numbers,
    unscaled,
    whiten,
)

SEEDS = st.integers(0, 2**32 - 1)
LIGHT = settings(max_examples=50, deadline=None, derandomize=True)


def random_batch(seed):
    """Rewards and values everywhere, masks with gaps, empty rows and padding."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 5)), int(rng.integers(1, 9)))
    return rng.normal(size=shape), rng.normal(size=shape), rng.random(shape) < 0.7


def random_groups(seed, at_least=1):
    """Rewards of interleaved groups with any numbers, at_least members each."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(at_least, 7, size=int(rng.integers(1, 5)))
    names = rng.choice(100, size=len(sizes), replace=False)
    groups = rng.permutation(np.repeat(names, sizes))
    return rng.normal(3.0, 2.0, size=len(groups)), groups


# at_last_token


def test_the_reward_lands_on_the_last_chosen_token():
    mask = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0]], dtype=bool)
    expected = [[0, 0, 7, 0], [0, 0, 0, -2], [5, 0, 0, 0]]
    np.testing.assert_array_equal(at_last_token(np.array([7.0, -2.0, 5.0]), mask), expected)


def test_a_row_without_chosen_tokens_gets_no_reward():
    mask = np.array([[0, 0], [1, 1]], dtype=bool)
    np.testing.assert_array_equal(at_last_token(np.array([9.0, 1.0]), mask), [[0, 0], [0, 1]])


def test_a_rollouts_advantage_stands_at_every_token_it_chose():
    mask = np.array([[0, 1, 1], [1, 0, 1]], dtype=bool)
    np.testing.assert_array_equal(at_every_token(np.array([2.0, -1.0]), mask), [[0, 2, 2], [-1, 0, -1]])


# penalised_rewards


def test_penalised_rewards_by_hand():
    # log p - log ref is 0.5, -1 and 0.25; at 0.1 a nat
    mask = np.array([[0, 1, 1], [1, 0, 0]], dtype=bool)
    logprobs, ref = np.array([[9, -1.0, -2.0], [-0.5, 9, 9]]), np.array([[5, -1.5, -1.0], [-0.75, 5, 5]])
    got = penalised_rewards(np.array([1.0, -2.0]), logprobs, ref, 0.1, mask)
    np.testing.assert_allclose(got, [[0, -0.05, 1.1], [-2.025, 0, 0]], atol=1e-12)


def test_without_a_coefficient_no_reference_is_read():
    mask = np.ones((1, 2), dtype=bool)
    np.testing.assert_array_equal(penalised_rewards(np.array([3.0]), np.zeros((1, 2)), None, 0.0, mask), [[0.0, 3.0]])


# overlong_penalty


def test_the_overlong_penalty_rises_over_the_buffer_and_no_further():
    """Limit 10, buffer 4: free up to 6 tokens, then a quarter a token."""
    got = overlong_penalty(np.array([0, 6, 7, 8, 10, 12]), limit=10, buffer=4)
    np.testing.assert_allclose(got, [0, 0, -0.25, -0.5, -1, -1])


def test_a_buffer_longer_than_the_limit_is_refused():
    with pytest.raises(AssertionError, match="buffer of 5"):
        overlong_penalty(np.array([1]), limit=4, buffer=5)


# gae


def test_gae_of_a_hand_computed_episode():
    # gamma 0.9, lambda 0.8, so gamma * lambda = 0.72
    # delta_2 = 1 - 0.7             = 0.3     A_2 = 0.3
    # delta_1 = 0 + 0.9 * 0.7 - 0.6 = 0.03    A_1 = 0.03 + 0.72 * 0.3   = 0.246
    # delta_0 = 0 + 0.9 * 0.6 - 0.5 = 0.04    A_0 = 0.04 + 0.72 * 0.246 = 0.21712
    advantages, returns = gae(
        np.array([[0.0, 0.0, 1.0]]), np.array([[0.5, 0.6, 0.7]]), np.ones((1, 3), dtype=bool), gamma=0.9, lam=0.8
    )
    np.testing.assert_allclose(advantages, [[0.21712, 0.246, 0.3]], rtol=1e-12)
    np.testing.assert_allclose(returns, [[0.71712, 0.846, 1.0]], rtol=1e-12)


def test_gae_steps_over_tool_output_as_if_it_were_not_there():
    # The episode computed by hand above, with two unchosen tokens after the first and padding at the end.
    rewards = np.array([[0.0, 50.0, 50.0, 0.0, 1.0, 50.0]])
    values = np.array([[0.5, -9.0, -9.0, 0.6, 0.7, -9.0]])
    mask = np.array([[1, 0, 0, 1, 1, 0]], dtype=bool)
    advantages, returns = gae(rewards, values, mask, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(advantages, [[0.21712, 0, 0, 0.246, 0.3, 0]], rtol=1e-12)
    np.testing.assert_allclose(returns, [[0.71712, 0, 0, 0.846, 1.0, 0]], rtol=1e-12)


@LIGHT
@given(seed=SEEDS, gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_equals_the_sum_of_discounted_td_errors(seed, gamma, lam):
    rewards, values, mask = random_batch(seed)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    for row in range(len(mask)):
        r, v = rewards[row, mask[row]], values[row, mask[row]]
        after = np.append(v[1:], 0.0)[: len(v)]
        deltas = r + gamma * after - v
        expected = [
            sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))
        ]
        np.testing.assert_allclose(advantages[row, mask[row]], expected, atol=1e-10)
        np.testing.assert_allclose(returns[row, mask[row]], expected + v, atol=1e-10)


@LIGHT
@given(seed=SEEDS)
def test_gae_with_lambda_one_and_no_discount_is_return_minus_value(seed):
    rewards, values, mask = random_batch(seed)
    advantages, returns = gae(rewards, values, mask, gamma=1.0, lam=1.0)
    for row in range(len(mask)):
        still_to_come = np.cumsum(rewards[row, mask[row]][::-1])[::-1]
        np.testing.assert_allclose(advantages[row, mask[row]], still_to_come - values[row, mask[row]], atol=1e-10)
        np.testing.assert_allclose(returns[row, mask[row]], still_to_come, atol=1e-10)


def test_gae_with_lambda_zero_is_the_one_step_td_error():
    # 1 + 0.5 * 4 - 2 = 1,   3 + 0.5 * 6 - 4 = 2,   5 - 6 = -1
    advantages, _ = gae(
        np.array([[1.0, 3.0, 5.0]]), np.array([[2.0, 4.0, 6.0]]), np.ones((1, 3), dtype=bool), gamma=0.5, lam=0.0
    )
    np.testing.assert_allclose(advantages, [[1.0, 2.0, -1.0]])


@LIGHT
@given(seed=SEEDS)
def test_gae_is_zero_outside_the_mask_and_never_reads_there(seed):
    rewards, values, mask = random_batch(seed)
    clean = gae(rewards, values, mask, 0.9, 0.9)
    dirty = gae(np.where(mask, rewards, np.nan), np.where(mask, values, np.inf), mask, 0.9, 0.9)
    for before, after in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(before, after)
        assert (after[~mask] == 0).all()


def test_gae_of_float32_inputs_is_computed_in_float64():
    ones = np.ones((1, 3), dtype=np.float32)
    advantages, returns = gae(ones, ones, ones.astype(bool), 1.0, 1.0)
    assert advantages.dtype == returns.dtype == np.float64
    np.testing.assert_array_equal(advantages, [[2.0, 1.0, 0.0]])  # returns 3, 2, 1 minus values of 1


def test_gae_refuses_a_discount_above_one():
    with pytest.raises(AssertionError, match=r"gamma 1\.1"):
        gae(np.zeros((1, 1)), np.zeros((1, 1)), np.ones((1, 1), dtype=bool), 1.1, 1.0)


def test_gae_refuses_shapes_that_differ():
    with pytest.raises(AssertionError, match="shapes differ"):
        gae(np.zeros((1, 2)), np.zeros((1, 3)), np.ones((1, 2), dtype=bool), 1.0, 1.0)


# groups


def test_group_baseline_of_a_hand_computed_batch():
    # group 4: mean (1 + 2 + 6) / 3 = 3;  group 0: mean (10 + 20) / 2 = 15
    rewards, groups = np.array([1.0, 10.0, 2.0, 20.0, 6.0]), np.array([4, 0, 4, 0, 4])
    np.testing.assert_allclose(group_baseline(rewards, groups), [-2, -5, -1, 5, 3])


def test_leave_one_out_of_a_hand_computed_group():
    # 1 - (2 + 6) / 2 = -3,   2 - (1 + 6) / 2 = -1.5,   6 - (1 + 2) / 2 = 4.5
    np.testing.assert_allclose(leave_one_out(np.array([1.0, 2.0, 6.0]), np.array([7, 7, 7])), [-3, -1.5, 4.5])


@LIGHT
@given(seed=SEEDS)
def test_group_advantages_sum_to_zero(seed):
    rewards, groups = random_groups(seed)
    for advantages in (
        group_baseline(rewards, groups),
        leave_one_out(rewards, groups),
        group_scale(group_baseline(rewards, groups), groups),
    ):
        for name in np.unique(groups):
            assert abs(advantages[groups == name].sum()) < 1e-9


@LIGHT
@given(seed=SEEDS)
def test_leave_one_out_is_the_group_baseline_times_n_over_n_minus_one(seed):
    rewards, groups = random_groups(seed, at_least=2)
    n = np.array([(groups == name).sum() for name in groups])
    np.testing.assert_allclose(
        leave_one_out(rewards, groups), n / (n - 1) * group_baseline(rewards, groups), atol=1e-12
    )


@LIGHT
@given(seed=SEEDS)
def test_one_group_does_not_notice_another(seed):
    rewards, groups = random_groups(seed)
    own = groups == groups[0]
    for function in (group_baseline, leave_one_out, group_scale):
        together = function(rewards, groups)[own]
        np.testing.assert_allclose(together, function(rewards[own], groups[own]), atol=1e-12)


def test_a_group_of_one_has_no_advantage():
    for function in (group_baseline, leave_one_out):
        np.testing.assert_array_equal(function(np.array([5.0]), np.array([3])), [0.0])
    np.testing.assert_array_equal(group_scale(np.array([0.0]), np.array([3])), [0.0])


@pytest.mark.parametrize("reward", [0.1, -7.3, 1e6 + 0.1, 0.0])
def test_equal_rewards_give_advantages_of_exactly_zero(reward):
    # Three times 0.1 has a floating-point mean other than 0.1, hence "exactly".
    rewards, groups = np.full(3, reward), np.zeros(3, dtype=int)
    for baseline in (group_baseline, leave_one_out):
        np.testing.assert_array_equal(baseline(rewards, groups), 0.0)
        np.testing.assert_array_equal(group_scale(baseline(rewards, groups), groups), 0.0)


def test_group_scale_of_a_hand_computed_group():
    # Deviations of 0.5 four times: sqrt(4 * 0.25 / 3) = 0.5773503; 0.5 / (0.5773503 + 0.0001) = 0.8658754
    scaled = group_scale(np.array([-0.5, -0.5, 0.5, 0.5]), np.zeros(4, dtype=int))
    np.testing.assert_allclose(scaled, [-0.8658754, -0.8658754, 0.8658754, 0.8658754], rtol=1e-6)


def test_group_scale_forgets_the_scale_of_the_rewards():
    rewards, groups = random_groups(1, at_least=3)
    small = group_scale(group_baseline(10.0 * rewards, groups), groups)
    large = group_scale(group_baseline(1000.0 * rewards, groups), groups)
    np.testing.assert_allclose(small, large, rtol=1e-4)


def test_group_scale_does_not_blow_up_differences_that_are_next_to_nothing():
    # A deviation of 1.4e-9 against an epsilon of 1e-4
    assert np.abs(group_scale(np.array([-1e-9, 1e-9]), np.array([0, 0]))).max() < 1e-4


def test_rewards_that_are_not_numbers_are_refused():
    with pytest.raises(AssertionError, match="drop unscored"):
        group_baseline(np.array([1.0, np.nan]), np.array([0, 0]))


# whitening


@LIGHT
@given(seed=SEEDS)
def test_whitened_values_have_mean_zero_and_deviation_one(seed):
    rng = np.random.default_rng(seed)
    x, mask = rng.normal(50.0, 9.0, size=(4, 6)), rng.random((4, 6)) < 0.6
    mask[0, :2] = True
    chosen = whiten(x, mask)[mask]
    assert abs(chosen.mean()) < 1e-9
    assert abs(chosen.std() - 1.0) < 1e-6


def test_whiten_of_hand_computed_values():
    # 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5
    x = np.array([[1.0, 3.0, 99.0], [5.0, 99.0, 7.0]])
    mask = x < 99
    expected = np.array([[-3.0, -1.0, 0.0], [1.0, 0.0, 3.0]]) / 5**0.5
    np.testing.assert_allclose(whiten(x, mask), expected, rtol=1e-7)


def test_scaling_to_unit_deviation_keeps_the_mean():
    # As above, around a mean of 4: 4 - 3 / sqrt(5) = 2.6583592 and so on
    x = np.array([[1.0, 3.0, 99.0], [5.0, 99.0, 7.0]])
    expected = [[2.6583592, 3.5527864, 0.0], [4.4472136, 0.0, 5.3416408]]
    np.testing.assert_allclose(scale_to_unit_std(x, x < 99), expected, rtol=1e-7)


def test_whitening_never_reads_outside_the_mask():
    x = np.array([[1.0, np.nan, 3.0, np.inf]])
    mask = np.isfinite(x)
    np.testing.assert_allclose(whiten(x, mask), [[-1.0, 0.0, 1.0, 0.0]], rtol=1e-7)
    np.testing.assert_allclose(scale_to_unit_std(x, mask), [[1.0, 0.0, 3.0, 0.0]], rtol=1e-7)


@pytest.mark.parametrize("value", [0.1, 1e6 + 0.1, -3.0, 0.0])
def test_equal_values_whiten_to_zero_and_scale_to_themselves(value):
    x, mask = np.full((3, 1), value), np.ones((3, 1), dtype=bool)
    np.testing.assert_array_equal(whiten(x, mask), 0.0)
    np.testing.assert_array_equal(scale_to_unit_std(x, mask), x)


def test_whitening_nothing_gives_zeros():
    x, mask = np.ones((2, 3)), np.zeros((2, 3), dtype=bool)
    np.testing.assert_array_equal(whiten(x, mask), np.zeros((2, 3)))
    np.testing.assert_array_equal(scale_to_unit_std(x, mask), np.zeros((2, 3)))


# batch_scale


def test_batch_scale_divides_by_one_deviation_for_all_groups():
    """Advantages -1, 1 and -3, 3: mean 0, mean square 5."""
    advantages = group_baseline(np.array([1.0, 3.0, 0.0, 6.0]), np.array([0, 0, 1, 1]))
    got = batch_scale(advantages, np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(got, np.array([-1, 1, -3, 3]) / 5**0.5, rtol=1e-7)


def test_batch_scale_of_equal_rewards_is_zero():
    np.testing.assert_array_equal(batch_scale(np.zeros(4), np.array([0, 0, 1, 1])), 0.0)


# filters and weights


def test_the_best_of_interleaved_groups_are_found_and_of_equals_the_first():
    rewards, groups = np.array([1.0, 5.0, 3.0, 5.0, 3.0, -2.0]), np.array([7, 2, 7, 2, 7, 9])
    assert best_of_group(rewards, groups, 1).tolist() == [False, True, True, False, False, True]
    assert best_of_group(rewards, groups, 2).tolist() == [False, True, True, True, True, True]
    assert best_of_group(rewards, groups, 3).all()


@LIGHT
@given(seed=SEEDS, count=st.integers(1, 4))
def test_so_many_are_kept_of_each_group_and_none_that_is_worse_than_one_left_out(seed, count):
    rewards, groups = random_groups(seed)
    kept = best_of_group(rewards, groups, count)
    for name in np.unique(groups):
        inside = groups == name
        assert kept[inside].sum() == min(count, inside.sum())
        left = rewards[inside & ~kept]
        assert not left.size or rewards[inside & kept].min() >= left.max()


def test_the_kept_are_compared_with_one_another_only():
    rewards, groups = np.array([0.0, 2.0, 6.0, 1.0, 9.0]), np.array([0, 0, 0, 1, 1])
    kept = np.array([False, True, True, False, True])
    np.testing.assert_allclose(above_mean_of_kept(rewards, groups, kept), [0, -2, 2, 0, 0])
    assert not above_mean_of_kept(rewards, groups, np.zeros(5, bool)).any()


def test_exponential_weights_of_a_hand_computed_group():
    """Temperature 1 / ln 3: a reward more triples the weight. 1, 3, 9 over their mean 13/3; alone it is 1."""
    rewards, groups = np.array([0.0, 1.0, 2.0, -5.0]), np.array([3, 3, 3, 1])
    np.testing.assert_allclose(exponential_weights(rewards, groups, 1 / np.log(3)), [3 / 13, 9 / 13, 27 / 13, 1])


@LIGHT
@given(seed=SEEDS)
def test_exponential_weights_have_the_mean_one_and_do_not_care_where_rewards_are_measured_from(seed):
    rewards, groups = random_groups(seed)
    weights = exponential_weights(rewards, groups, 0.3)
    for name in np.unique(groups):
        assert weights[groups == name].mean() == pytest.approx(1.0)
    np.testing.assert_allclose(exponential_weights(rewards + 1e4, groups, 0.3), weights, rtol=1e-6)


def test_exponential_weights_of_huge_rewards_stay_finite():
    np.testing.assert_allclose(exponential_weights(np.array([1e6, 0.0]), np.zeros(2, int), 0.1), [2.0, 0.0])


# turns

# Two episodes of three turns and one of two; 0 in the mask is what an environment wrote, and padding.
TURNS = np.array([[0, 1, 1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 1, 0, 1, 0], [1, 0, 0, 1, 1, 0, 0, 0]], dtype=bool)
# What single turns earned, at their last tokens; of the rewards 4, 1 and 2 they leave 3, 0 and 2 for the last turn.
SHARES = np.array([[0, 0, 1, 0, 0.0, 0, 0, 0], [0, 0, 0, 0, 1.0, 0, 0, 0], [0, 0, 0, 0, 0.0, 0, 0, 0]])
REWARDS = np.array([4.0, 1.0, 2.0])


def test_turns_are_counted_over_what_the_environment_wrote():
    expected = [[-1, 0, 0, -1, 1, -1, -1, 2], [-1, 0, -1, 1, 1, -1, 2, -1], [0, -1, -1, 1, 1, -1, -1, -1]]
    assert turn_numbers(TURNS).tolist() == expected


def test_shares_stand_at_the_ends_of_turns_and_the_rest_at_the_last():
    paid = at_turn_ends(REWARDS, SHARES, TURNS)
    expected = [[0, 0, 1, 0, 0, 0, 0, 3], [0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 2, 0, 0, 0]]
    assert paid.tolist() == expected
    assert at_turn_ends(REWARDS, None, TURNS).sum(axis=1).tolist() == REWARDS.tolist()


def test_turn_gae_of_a_hand_computed_episode_of_three_turns():
    # Turn rewards 1, 0, 3; values before the first tokens 0.5, 0.6, 0.7; gamma 0.9, lambda 0.8.
    # delta_2 = 3 - 0.7             = 2.3    A_2 = 2.3
    # delta_1 = 0 + 0.9 * 0.7 - 0.6 = 0.03   A_1 = 0.03 + 0.72 * 2.3    = 1.686
    # delta_0 = 1 + 0.9 * 0.6 - 0.5 = 1.04   A_0 = 1.04 + 0.72 * 1.686  = 2.25392
    # Values at other tokens of a turn, and all that the environment wrote, are not read.
    values = np.array([[-9.0, 0.5, 7.0, -9.0, 0.6, -9.0, -9.0, 0.7]])
    rewards = np.where(TURNS[:1], at_turn_ends(REWARDS, SHARES, TURNS)[:1], 50.0)
    advantages, returns = turn_gae(rewards, values, TURNS[:1], gamma=0.9, lam=0.8)
    np.testing.assert_allclose(advantages, [[0, 2.25392, 2.25392, 0, 1.686, 0, 0, 2.3]], rtol=1e-12)
    np.testing.assert_allclose(returns, [[0, 2.75392, 2.75392, 0, 2.286, 0, 0, 3.0]], rtol=1e-12)


@LIGHT
@given(seed=SEEDS, gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_turn_gae_is_gae_where_every_turn_is_one_token(seed, gamma, lam):
    rewards, values, mask = random_batch(seed)
    mask[:, 1::2] = False  # no two tokens stand side by side
    for by_turn, by_token in zip(
        turn_gae(rewards, values, mask, gamma, lam), gae(rewards, values, mask, gamma, lam), strict=True
    ):
        np.testing.assert_allclose(by_turn, by_token, atol=1e-12)


def test_turn_advantages_of_a_hand_computed_group():
    # Returns from the turns on, gamma 0.5: row 0 has 3, 1.5, 0.75 + 1 = 1.75; row 1 has 0, 1, 0.5; row 2 has 2, 1.
    # Means: of the first turn (1.75 + 0.5 + 1) / 3, of the second (1.5 + 1 + 2) / 3, of the third (3 + 0) / 2.
    advantages = turn_advantages(at_turn_ends(REWARDS, SHARES, TURNS), np.zeros(3, int), TURNS, 0.5, unscaled)
    first, second, third = 3.25 / 3, 1.5, 1.5
    expected = [
        [0, 1.75 - first, 1.75 - first, 0, 1.5 - second, 0, 0, 3 - third],
        [0, 0.5 - first, 0, 1 - second, 1 - second, 0, 0 - third, 0],
        [1 - first, 0, 0, 2 - second, 2 - second, 0, 0, 0],
    ]
    np.testing.assert_allclose(advantages, expected, rtol=1e-12)


def test_turn_advantages_do_not_compare_groups_and_are_zero_where_nothing_compares():
    advantages = turn_advantages(at_turn_ends(REWARDS, SHARES, TURNS), np.array([7, 2, 7]), TURNS, 1.0, group_scale)
    assert not advantages[1].any()  # alone in its group
    assert advantages[0, 7] == 0  # the only third turn of its group
    assert advantages[0, 1] == advantages[0, 2] == -advantages[2, 0] > 0


@LIGHT
@given(seed=SEEDS)
def test_without_shares_and_discount_turns_of_equal_episodes_get_the_episode_s_advantage(seed):
    rewards = np.random.default_rng(seed).normal(size=4)
    mask = np.tile(np.array([[0, 1, 1, 0, 1, 0, 1, 1]], bool), (4, 1))
    groups = np.array([0, 1, 0, 1])
    by_turn = turn_advantages(at_turn_ends(rewards, None, mask), groups, mask, 1.0, group_scale)
    expected = at_every_token(group_scale(group_baseline(rewards, groups), groups), mask)
    np.testing.assert_allclose(by_turn, expected, atol=1e-12)


def test_rows_without_a_turn_have_no_advantage():
    mask = np.zeros((2, 3), bool)
    assert not turn_advantages(np.zeros((2, 3)), np.zeros(2, int), mask, 1.0, group_scale).any()
    assert not np.any(turn_gae(np.ones((2, 3)), np.ones((2, 3)), mask, 1.0, 1.0))
