import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.core.types import Batch, Drawn, Group, KeptIds, Problem, Rollout, TokenScores
from steadyrl.maths.batch import (
    loss_arrays,
    loss_count,
    make_batch,
    mean_of_tokens,
    micro_batches,
    only_trained,
    plain_drawn,
    recall_drawn,
    sum_of_tokens,
    take_rows,
)

PAD = 99
LIGHT = settings(max_examples=100, deadline=None, derandomize=True)


def rollout(prompt, completion, logprobs, mask=None, kept=None, reward=0.0):
    return Rollout(
        problem_id="p",
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=np.array(completion, np.int32),
        completion_mask=np.array(mask if mask is not None else [True] * len(completion)),
        sampling_logprobs=np.array(logprobs, np.float32),
        text="",
        stop_reason="stop",
        kept_ids=None if kept is None else tuple(np.array(ids, np.int32) for ids in kept),
        reward=reward,
    )


# Two problems: one with a long prompt and a short completion, one with two rollouts, of which the first holds two
# tokens of a tool.
SHORT = rollout([1, 2, 3], [4], [-0.5], reward=1.0)
TOOL = rollout([5], [6, 7, 8, 9], [-0.25, 0.0, 0.0, -2.0], mask=[True, False, False, True], reward=-2.0)
PLAIN = rollout([5], [6, 10], [-0.25, -1.0], reward=0.5)


def three_rows():
    return make_batch([Group(Problem("a", ""), (SHORT,)), Group(Problem("b", ""), (TOOL, PLAIN))], PAD)


def cut_rows():
    """Two rows whose tokens were drawn from a few kept ids each."""
    first = rollout([1], [4, 5], [-0.5, -0.1], kept=[[3, 4, 8], [5]])
    second = rollout([1, 2], [6], [-0.5], kept=[[6, 7]])
    return make_batch([Group(Problem("a", ""), (first, second))], PAD)


def test_rows_are_prompt_then_completion_then_padding():
    batch = three_rows()
    assert batch.tokens.tolist() == [[1, 2, 3, 4, PAD], [5, 6, 7, 8, 9], [5, 6, 10, PAD, PAD]]
    assert batch.lengths.tolist() == [4, 5, 3]


def test_the_mask_is_true_where_the_policy_chose_the_token():
    expected = [[0, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 1, 1, 0, 0]]
    assert three_rows().completion_mask.astype(int).tolist() == expected


def test_log_probabilities_stand_in_the_column_of_their_token():
    expected = [[0, 0, 0, -0.5, 0], [0, -0.25, 0, 0, -2], [0, -0.25, -1, 0, 0]]
    assert three_rows().sampling_logprobs.tolist() == expected


def test_what_a_tool_s_token_brought_as_log_probability_is_not_read():
    noisy = rollout([5], [6, 7], [-0.25, np.nan], mask=[True, False])
    assert make_batch([Group(Problem("a", ""), (noisy,))], PAD).sampling_logprobs.tolist() == [[0, -0.25, 0]]


def test_rows_keep_their_reward_and_group():
    batch = three_rows()
    assert batch.rewards.tolist() == [1.0, -2.0, 0.5]
    assert batch.groups.tolist() == [0, 1, 1]


def test_without_truncation_there_are_no_kept_ids():
    assert three_rows().kept is None


def test_kept_ids_follow_one_another_row_by_row():
    kept = cut_rows().kept
    assert kept.ids.tolist() == [3, 4, 8, 5, 6, 7]
    assert kept.lengths.tolist() == [[0, 3, 1], [0, 0, 2]]


def test_a_rollout_without_kept_ids_has_none_in_a_batch_that_has_some():
    cut = rollout([1], [4], [-0.5], kept=[[3, 4]])
    kept = make_batch([Group(Problem("a", ""), (PLAIN, cut))], PAD).kept
    assert kept.ids.tolist() == [3, 4]
    assert kept.lengths.tolist() == [[0, 0, 0], [0, 2, 0]]


def test_unscored_rollouts_are_refused():
    with pytest.raises(AssertionError, match="unscored"):
        make_batch([Group(Problem("a", ""), (SHORT, rollout([1], [2], [0.0], reward=None)))], PAD)


def test_an_empty_batch_is_refused():
    with pytest.raises(AssertionError, match="at least one rollout"):
        make_batch([], PAD)


def test_taken_rows_come_in_the_order_asked_for_and_are_cut_to_the_longest():
    taken = take_rows(three_rows(), np.array([2, 0]))
    assert taken.tokens.tolist() == [[5, 6, 10, PAD], [1, 2, 3, 4]]
    assert taken.lengths.tolist() == [3, 4]
    assert taken.completion_mask.astype(int).tolist() == [[0, 1, 1, 0], [0, 0, 0, 1]]
    assert taken.sampling_logprobs.tolist() == [[0, -0.25, -1, 0], [0, 0, 0, -0.5]]
    assert taken.rewards.tolist() == [0.5, 1.0]
    assert taken.groups.tolist() == [1, 0]


def test_taken_rows_bring_their_kept_ids():
    kept = take_rows(cut_rows(), np.array([1, 0])).kept
    assert kept.ids.tolist() == [6, 7, 3, 4, 8, 5]
    assert kept.lengths.tolist() == [[0, 0, 2], [0, 3, 1]]
    assert take_rows(cut_rows(), np.array([1])).kept.ids.tolist() == [6, 7]


def filled():
    """A batch with everything, each entry telling its row and column: row + column / 10, and more per field."""
    cell = np.arange(3)[:, None] + np.arange(5)[None] / 10
    batch = three_rows()
    return Batch(
        tokens=batch.tokens,
        lengths=batch.lengths,
        completion_mask=batch.completion_mask,
        sampling_logprobs=cell,
        rewards=batch.rewards,
        groups=batch.groups,
        old=TokenScores(logprobs=cell + 10, entropy=cell + 20, values=cell + 30, ref_logprobs=cell + 40),
        advantages=cell + 50,
        returns=cell + 60,
        measured={"extra": cell + 70},
    )


def test_taken_rows_bring_scores_advantages_returns_and_measurements():
    taken = take_rows(filled(), np.array([2, 0]))
    cell = np.array([[2, 2.1, 2.2, 2.3], [0, 0.1, 0.2, 0.3]])
    found = [
        taken.old.logprobs, taken.old.entropy, taken.old.values, taken.old.ref_logprobs,
        taken.advantages, taken.returns, taken.measured["extra"],
    ]  # fmt: skip
    for i, array in enumerate(found, start=1):
        np.testing.assert_allclose(array, cell + 10 * i)
    assert taken.old.kl_ref_exact is None


def test_a_loss_gets_its_arrays_by_name():
    batch = filled()
    arrays = loss_arrays(batch)
    assert {name: array[1, 2] for name, array in arrays.items()} == {
        "mask": False,
        "old_logprobs": 11.2,
        "sampling_logprobs": 1.2,
        "old_values": 31.2,
        "ref_logprobs": 41.2,
        "advantages": 51.2,
        "returns": 61.2,
    }


def test_a_loss_gets_nothing_of_what_was_not_measured():
    batch = three_rows()
    with_old = Batch(**{**vars(batch), "old": TokenScores(logprobs=batch.sampling_logprobs)})
    assert set(loss_arrays(with_old)) == {"mask", "old_logprobs", "sampling_logprobs"}


def of_lengths(lengths):
    empty = np.zeros((len(lengths), max(lengths)))
    last = np.arange(max(lengths)) == np.array(lengths)[:, None] - 1
    return Batch(
        tokens=empty.astype(np.int32),
        lengths=np.array(lengths, np.int32),
        completion_mask=last,
        sampling_logprobs=empty.astype(np.float32),
        rewards=np.zeros(len(lengths)),
        groups=np.zeros(len(lengths), np.int32),
    )


@LIGHT
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 100))
def test_micro_batches_hold_every_row_once(lengths, tokens):
    parts = micro_batches(of_lengths(lengths), tokens)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    assert all(len(part) for part in parts)


@LIGHT
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 100))
def test_micro_batches_of_several_rows_stay_within_the_bound_padding_included(lengths, tokens):
    for part in micro_batches(of_lengths(lengths), tokens):
        assert len(part) == 1 or len(part) * max(lengths[row] for row in part) <= tokens


def test_rows_without_a_completion_token_are_in_no_micro_batch():
    none = rollout([1, 2, 3, 4], [], [])
    batch = make_batch([Group(Problem("a", ""), (none, SHORT, none, PLAIN))], PAD)
    assert sorted(row for part in micro_batches(batch, 1) for row in part) == [1, 3]
    with pytest.raises(AssertionError, match="must not reach a backend"):
        micro_batches(take_rows(batch, np.array([0, 2])), 1)


def test_micro_batches_are_filled_with_rows_of_like_length():
    parts = micro_batches(of_lengths([9, 2, 3, 10, 2]), 9)
    assert [sorted(part.tolist()) for part in parts] == [[1, 2, 4], [0], [3]]


@LIGHT
@given(st.data())
def test_micro_batches_together_hold_every_kept_id_once(data):
    rows = data.draw(st.lists(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=4),
                              min_size=1, max_size=6))  # fmt: skip
    group = Group(Problem("a", ""), tuple(rollout([1], [0] * len(r), [0.0] * len(r), kept=r) for r in rows))
    batch = make_batch([group], PAD)
    for part in micro_batches(batch, data.draw(st.integers(1, 12))):
        taken: KeptIds = take_rows(batch, part).kept
        expected = [ids for row in part for ids in rows[row]]
        assert taken.ids.tolist() == [i for ids in expected for i in ids]
        assert taken.lengths[taken.lengths > 0].tolist() == [len(ids) for ids in expected]


WEIGHED = np.array([[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]], bool)


def test_a_mean_of_tokens_counts_every_rollout_alike():
    expected = [[0, 1 / 2, 1 / 2, 0], [0, 1, 0, 0], [0, 1 / 3, 1 / 3, 1 / 3], [0, 0, 0, 0]]
    np.testing.assert_allclose(mean_of_tokens(WEIGHED, 0), expected)


def test_a_sum_of_tokens_counts_every_token_alike():
    np.testing.assert_allclose(sum_of_tokens(WEIGHED, 4), WEIGHED / 4)


def test_a_sum_of_tokens_needs_its_constant():
    with pytest.raises(AssertionError, match="longest completion"):
        sum_of_tokens(WEIGHED, 0)


def test_a_loss_is_divided_by_tokens_or_where_they_have_weights_by_rollouts():
    batch = three_rows()
    assert loss_count(batch) == 5.0  # 1, 2 of the policy's own, 2
    weighed = replace(batch, weights=mean_of_tokens(batch.completion_mask, 0))
    assert loss_count(weighed) == 3.0
    part = take_rows(weighed, np.array([2, 0]))
    assert loss_count(part) == 2.0
    np.testing.assert_allclose(part.weights.sum(axis=1), [1.0, 1.0])


def masked_batch():
    first, second = rollout([1], [2, 3], [-0.5, -0.25]), replace(rollout([4], [5], [-1.0]), trains=False)
    kept = (np.array([2, 7], np.int32), np.array([3], np.int32)), (np.array([5, 6, 8], np.int32),)
    rows = tuple(replace(r, kept_ids=ids) for r, ids in zip((first, second), kept, strict=True))
    batch = make_batch([Group(Problem("a", ""), rows[::-1])], PAD)
    return replace(batch, old=TokenScores(logprobs=np.where(batch.completion_mask, -2.0, 0.0)))


def test_what_does_not_train_keeps_its_length_and_its_log_probs_until_the_updates():
    batch = masked_batch()
    assert batch.completion_mask.sum(axis=1).tolist() == [1, 2]
    assert batch.sampling_logprobs[0, 1] == -1.0
    assert batch.trained_mask.sum(axis=1).tolist() == [0, 2]


def test_an_update_sees_nothing_of_rows_that_do_not_train():
    batch = only_trained(masked_batch())
    assert batch.completion_mask.sum(axis=1).tolist() == [0, 2]
    np.testing.assert_array_equal([batch.sampling_logprobs[0], batch.old.logprobs[0]], 0.0)
    assert batch.kept.ids.tolist() == [2, 7, 3]
    assert batch.kept.lengths.sum(axis=1).tolist() == [0, 3]


def test_shares_of_turns_stand_on_the_last_token_that_the_policy_chose_before_their_end():
    """The second end lies behind what the environment wrote last; a position counts from the completion's start."""
    episode = replace(TOOL, turn_shares=((1, 0.5), (4, -1.0)))
    cut = replace(rollout([5], [6, 7, 8], [-0.25, 0, 0], mask=[True, False, False]), turn_shares=((3, 2.0),))
    empty = replace(rollout([5], [7], [0.0], mask=[False]), turn_shares=((1, 9.0),))
    batch = make_batch([Group(Problem("a", ""), (episode, PLAIN, cut, empty))], PAD)
    assert batch.turn_rewards.tolist() == [[0, 0.5, 0, 0, -1], [0] * 5, [0, 2, 0, 0, 0], [0] * 5]
    assert take_rows(batch, np.array([2])).turn_rewards.tolist() == [[0, 2, 0, 0]]


def test_without_shares_of_turns_a_batch_has_no_array_of_them():
    assert three_rows().turn_rewards is None


def test_shares_of_turns_survive_a_checkpoint():
    episode = replace(TOOL, turn_shares=((1, 0.5), (4, -1.0)))
    drawn = Drawn(3, (Group(Problem("a", ""), (episode,)),))
    recalled = recall_drawn(json.loads(json.dumps(plain_drawn(drawn))))
    assert recalled.groups[0].rollouts[0].turn_shares == ((1, 0.5), (4, -1.0))
