from dataclasses import replace

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core.errors import DataError
from steadyrl.core.types import Problem, Sampling
from steadyrl.loop.rollout.collect import collect, demonstrate, require_answers

PROBLEMS = [Problem("one", "ab"), Problem("two", "xyz"), Problem("three", "q")]
SAMPLING = Sampling(max_new_tokens=12)


def texts(groups):
    return [[rollout.text for rollout in group.rollouts] for group in groups]


def test_every_problem_has_its_group_with_so_many_rollouts():
    groups = collect(ToyBackend(), PROBLEMS, 4, SAMPLING, (0, 0))
    assert [group.problem for group in groups] == PROBLEMS
    assert [[r.problem_id for r in group.rollouts] for group in groups] == [["one"] * 4, ["two"] * 4, ["three"] * 4]


def test_rollouts_begin_with_their_own_prompt():
    backend = ToyBackend()
    for group in collect(backend, PROBLEMS, 2, SAMPLING, (0, 0)):
        for rollout in group.rollouts:
            assert backend.tokenizer.decode(rollout.prompt_ids) == group.problem.prompt


def test_rollouts_of_one_problem_differ():
    for group in texts(collect(ToyBackend(), PROBLEMS, 4, SAMPLING, (0, 0))):
        assert len(set(group)) == 4


def test_the_same_prompt_twice_in_a_step_is_answered_differently():
    first, second = texts(collect(ToyBackend(), [PROBLEMS[0], PROBLEMS[0]], 2, SAMPLING, (0, 0)))
    assert not set(first) & set(second)


def test_equal_keys_give_equal_completions_and_others_others():
    def drawn(*key):
        return texts(collect(ToyBackend(), PROBLEMS, 2, SAMPLING, key))

    assert drawn(0, 5) == drawn(0, 5)
    assert drawn(0, 5) != drawn(0, 6)
    assert drawn(0, 5) != drawn(1, 5)


def test_a_completion_does_not_depend_on_the_problems_after_it():
    assert texts(collect(ToyBackend(), PROBLEMS, 2, SAMPLING, (0, 0)))[:2] == texts(
        collect(ToyBackend(), PROBLEMS[:2], 2, SAMPLING, (0, 0))
    )


def test_every_sampled_token_counts_as_chosen():
    for group in collect(ToyBackend(), PROBLEMS, 2, SAMPLING, (0, 0)):
        for rollout in group.rollouts:
            assert rollout.completion_mask.all()
            assert len(rollout.completion_mask) == len(rollout.completion_ids) == len(rollout.sampling_logprobs)
            assert (rollout.sampling_logprobs < 0).all()


def test_rollouts_are_unscored_and_carry_the_policy_s_version():
    rollouts = [r for g in collect(ToyBackend(), PROBLEMS, 2, SAMPLING, (0, 0), policy_version=7) for r in g.rollouts]
    assert {r.policy_version for r in rollouts} == {7}
    assert {r.reward for r in rollouts} == {None}


def test_the_text_is_what_was_decoded_without_the_end_token():
    backend = ToyBackend()
    x, space, a = backend.tokenizer.encode_prompt("x a").tolist()
    end = backend.tokenizer.end_id
    backend.parameters["logits"] = np.full_like(backend.parameters["logits"], -1e9)
    for before, after in ((x, space), (space, a), (a, end)):
        backend.parameters["logits"][before, after] = 0.0
    (group,) = collect(backend, [Problem("p", "x")], 1, SAMPLING, (0, 0))
    (rollout,) = group.rollouts
    assert rollout.completion_ids.tolist() == [space, a, end]
    assert rollout.text == " a"
    assert rollout.stop_reason == "stop"


def test_kept_ids_are_recorded_where_sampling_cuts():
    (cut,) = collect(ToyBackend(), PROBLEMS[:1], 1, replace(SAMPLING, top_k=3), (0, 0))
    assert [len(ids) for ids in cut.rollouts[0].kept_ids] == [3] * len(cut.rollouts[0].completion_ids)
    for ids, token in zip(cut.rollouts[0].kept_ids, cut.rollouts[0].completion_ids, strict=True):
        assert token in ids
    (whole,) = collect(ToyBackend(), PROBLEMS[:1], 1, SAMPLING, (0, 0))
    assert whole.rollouts[0].kept_ids is None


class Short(ToyBackend):
    """A model of 12 positions; a token is a character, and an answer ends with one more."""

    def describe(self):
        return super().describe() | {"context": 12}


class Book:
    name = "book"

    def gold(self, problem):
        return problem.columns["gold"]


def test_good_answers_beyond_the_models_positions_are_refused_before_they_train():
    fitting, beyond = (Problem(gold, "abc?", {"gold": gold}) for gold in ("a" * 7, "b" * 8))
    require_answers(Short(), [fitting], Book())
    require_answers(ToyBackend(), [fitting, beyond], Book())
    assert len(demonstrate(Short(), [fitting], Book(), (0, 0))) == 1
    told = "the good answer to the problem 'bbbbbbbb' takes 9 tokens after a prompt of 4, and the model.*reach 12"
    with pytest.raises(DataError, match=told):
        require_answers(Short(), [fitting, beyond], Book())
    with pytest.raises(DataError, match=told):
        demonstrate(Short(), [fitting, beyond], Book(), (0, 0))
