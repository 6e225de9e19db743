import pickle
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms.ppo import Settings as PpoSettings
from steadyrl.core.algorithm import open_algorithm
from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Batch, TokenScores

OWN = """
from dataclasses import replace
from functools import partial

import numpy as np

from steadyrl.core.protocols import Algorithm
from steadyrl.core.sections import Section
from steadyrl.maths.losses import policy_loss


class Settings(Section):
    pass


def select(groups):
    return groups


def prepare(batch, numbers):
    advantages = batch.rewards[:, None] * batch.completion_mask
    return replace(batch, advantages=advantages, measured={"advantages_raw": advantages})


def loss(xp, new, arrays, count):
    return new.logprobs.sum(), {}


def build(settings):
    return Algorithm(needs=frozenset(), select=select, prepare=prepare, loss=loss)
"""
BATCH = Batch(
    tokens=np.zeros((2, 3), np.int32),
    lengths=np.array([3, 3], np.int32),
    completion_mask=np.ones((2, 3), bool),
    sampling_logprobs=np.zeros((2, 3), np.float32),
    rewards=np.array([1.0, 2.0]),
    groups=np.zeros(2, np.int32),
)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write the algorithm above with one thing replaced, and open it."""
    monkeypatch.chdir(tmp_path)

    def make(name, old="", new=""):
        assert old in OWN
        (tmp_path / f"{name}.py").write_text(OWN.replace(old, new) if old else OWN)
        return open_algorithm(name, None)

    return make


def refusal(function, *arguments):
    with pytest.raises(ConfigError) as info:
        function(*arguments)
    return str(info.value)


def test_the_results_of_a_sound_algorithm_pass_unchanged(own):
    algorithm = own("sound_own")
    assert algorithm.prepare(BATCH, {}).advantages.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert algorithm.select([]) == []
    assert algorithm.loss(np, TokenScores(logprobs=np.full((2, 3), 0.5)), {}, 6.0) == (3.0, {})


def test_the_checked_loss_can_be_sent_to_other_ranks():
    loss = open_algorithm("ppo", PpoSettings()).loss
    assert pickle.loads(pickle.dumps(loss)).func is loss.func


def test_a_need_that_nothing_supplies_is_refused(own):
    message = refusal(own, "needing_own", "frozenset()", 'frozenset({"reference", "values"})')
    assert message.startswith("the algorithm 'needing_own': nothing supplies its needs ['reference']; expected")


@pytest.mark.parametrize(
    ("number", "old", "new", "call"),
    [
        (0, "loss=loss", "loss=lambda new: 0", "loss(xp, new, arrays, count)"),
        (1, "loss=loss", "loss=partial(lambda new: 0, clip_low=0.2)", "loss(xp, new, arrays, count)"),
        (2, "prepare(batch, numbers)", "prepare(batch)", "prepare(batch, numbers)"),
        (3, "select(groups)", "select()", "select(groups)"),
    ],
)
def test_a_function_with_other_arguments_is_refused_when_opened(own, number, old, new, call):
    assert refusal(own, f"calls_own_{number}", old, new).endswith(f"cannot be called as {call}")


def test_an_object_that_only_resembles_an_algorithm_is_refused(own):
    like = "return __import__('types').SimpleNamespace(adapt=None, state={}, source='policy', update=None, "
    message = refusal(own, "resembling_own", "return Algorithm(", like)
    assert message.endswith("'build' returns SimpleNamespace; expected steadyrl.core.protocols.Algorithm")


@pytest.mark.parametrize(
    ("number", "old", "new", "fault"),
    [
        (0, "batch.rewards[:, None] * batch.completion_mask", "batch.rewards", "advantages of the shape (2,)"),
        (1, "batch.rewards[:, None] *", "np.nan *", "advantages that are not finite at 6 of 6 tokens"),
        (2, '"advantages_raw": advantages', '"mine": batch.rewards', "mine of the shape (2,); expected (2, 3)"),
        (3, "return replace(batch", "dict(batch=batch", "None; expected the batch"),
    ],
)
def test_a_prepared_batch_that_cannot_train_is_refused(own, number, old, new, fault):
    algorithm = own(f"prepares_own_{number}", old, new)
    message = refusal(algorithm.prepare, BATCH, {})
    assert message.startswith(f"the algorithm 'prepares_own_{number}': 'prepare' returns {fault}")


@pytest.mark.parametrize("broken", ["logprobs", "ref_logprobs", "values"])
def test_numbers_of_a_policy_or_reference_that_is_broken_are_not_the_algorithms_fault(own, broken):
    algorithm = own(f"diverged_own_{broken}", "batch.rewards[:, None] *", "np.nan *")
    scores = replace(TokenScores(logprobs=np.zeros((2, 3))), **{broken: np.full((2, 3), np.nan)})
    assert np.isnan(algorithm.prepare(replace(BATCH, old=scores), {}).advantages).all()


def test_a_selection_or_loss_of_another_type_is_refused(own):
    none = own("selects_own", "return groups", "groups")
    assert refusal(none.select, []).endswith("'select' returns None; expected a list of groups")
    single = own("losing_own", "sum(), {}", "sum()")
    message = refusal(single.loss, np, TokenScores(logprobs=np.zeros((2, 3))), {}, 6.0)
    assert "'loss' returns the type float64; expected the loss, and a dict of sums" in message


@pytest.mark.parametrize(
    ("number", "returned", "fault"),
    [
        (0, "new.logprobs * 2", "a matrix of the shape (2, 3) as the loss"),
        (1, "new.logprobs.sum(axis=1)", "a matrix of the shape (2,) as the loss"),
        (2, "0.25", "the type float as the loss"),
    ],
)
def test_a_loss_that_is_no_number_of_the_policy_is_refused(own, number, returned, fault):
    algorithm = own(f"many_losses_own_{number}", "new.logprobs.sum(), {}", f"{returned}, {{}}")
    message = refusal(algorithm.loss, np, TokenScores(logprobs=np.zeros((2, 3))), {}, 6.0)
    assert f"'loss' returns {fault}; expected one number" in message


@pytest.mark.parametrize(("number", "returned"), [(0, "None"), (1, "{'beta': None}"), (2, "{'beta': float('inf')}")])
def test_an_adaptation_without_numbers_is_refused(own, number, returned):
    adapting = f"Algorithm(adapt=lambda numbers, metrics: {returned}, "
    message = refusal(own(f"adapting_own_{number}", "Algorithm(", adapting).adapt, {}, {"kl": 0.5})
    assert "'adapt' returns" in message and "expected a dict of finite numbers" in message


@pytest.mark.parametrize(("number", "value"), [(0, "'low'"), (1, "None"), (2, "float('nan')")])
def test_a_state_that_no_checkpoint_holds_is_refused_before_the_run(own, number, value):
    message = refusal(own, f"stating_own_{number}", "Algorithm(", f"Algorithm(state={{'width': {value}}}, ")
    assert "state['width'] is" in message
