"""The gradients of reward and penalty: by hand, against parts computed apart, and beside the whole."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms import rloo
from steadyrl.core.metrics import Clock
from steadyrl.core.protocols import Update
from steadyrl.core.types import Group, Problem, Rollout, Sampling
from steadyrl.loop.checkpoint import State
from steadyrl.loop.gradient_parts import gradient_parts
from steadyrl.loop.train import gather
from steadyrl.maths.batch import make_batch

ALGORITHMS = ("ppo", "grpo", "rlaif", "rloo", "reinforce")


def moved(toy, *overrides):
    """A session whose policy is some way from its reference, and a step's batch before and after ``prepare``."""
    session = toy(
        "rollout.prompts_per_step=8", "rollout.samples_per_prompt=4", "algorithm.args.kl_coef=0.3", *overrides
    )
    noise = np.random.default_rng(1).normal(0.0, 0.5, session.backend.parameters["logits"].shape)
    session.backend.parameters["logits"] = session.backend.parameters["logits"] + noise
    numbers = dict(session.algorithm.state)
    groups, _, _ = gather(session, State(algorithm=numbers), Clock())
    scored = session.scored(make_batch(session.algorithm.select(groups), session.backend.tokenizer.pad_id))
    return session, scored, session.algorithm.prepare(scored, numbers), numbers


def parts_of(session, scored, batch, numbers):
    return gradient_parts(session.backend, session.algorithm, scored, batch, numbers, session.update_at(0.1))


def flat(session, batch):
    return np.concatenate([g.ravel() for g in session.backend.gradients(batch, session.update_at(0.1))[0].values()])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_two_parts_add_up_to_the_whole(algorithm, toy, monkeypatch):
    monkeypatch.setattr("steadyrl.loop.gradient_parts.SHARE", 1)
    session, scored, batch, numbers = moved(toy, f"algorithm.name={algorithm}")
    found = parts_of(session, scored, batch, numbers)
    reward, penalty, cosine = (found[f"gradient/{name}"] for name in ("reward", "penalty", "cosine"))
    free = replace(batch, old=replace(batch.old, ref_logprobs=batch.old.logprobs), advantages=0 * batch.advantages)
    whole = flat(session, batch) - flat(session, free)  # without what values and entropy ask for
    assert whole @ whole == pytest.approx(reward**2 + penalty**2 + 2 * cosine * reward * penalty, rel=1e-6)
    assert penalty > 0.01 * reward and -1 <= cosine <= 1


def test_parts_computed_apart_have_the_same_lengths_and_angle(toy, monkeypatch):
    """Advantages of RLOO are linear in the rewards: once without a penalty, once without rewards."""
    monkeypatch.setattr("steadyrl.loop.gradient_parts.SHARE", 1)
    session, scored, batch, numbers = moved(toy, "algorithm.name=rloo")
    reward = flat(session, rloo.prepare(scored, 0.0))
    penalty = flat(session, rloo.prepare(replace(scored, rewards=0 * scored.rewards), 0.3))
    found = parts_of(session, scored, batch, numbers)
    lengths = np.linalg.norm(reward), np.linalg.norm(penalty)
    assert (found["gradient/reward"], found["gradient/penalty"]) == pytest.approx(lengths)
    assert found["gradient/cosine"] == pytest.approx(reward @ penalty / (lengths[0] * lengths[1]))


@pytest.mark.parametrize(("likelier", "cosine"), [("a", -1.0), ("b", 1.0)])
def test_two_answers_of_one_letter_by_hand(likelier, cosine, toy):
    """RLOO's advantages are the difference, d and -d; the gradient is d (e_b - e_a) / 2, of length d / 2 ** 0.5.

    The reward's difference is 1. The policy has raised one letter by 0.5 nats, which the coefficient of 0.3 counts.
    """
    session = toy("algorithm.name=rloo", "algorithm.args.kl_coef=0.3")
    backend = session.backend
    space, letters = backend.tokenizer.encode_prompt(" "), backend.tokenizer.encode_prompt("ab")
    logits = backend.parameters["logits"].copy()
    logits[space[0], backend.tokenizer.encode_prompt(likelier)[0]] += 0.5
    backend.parameters["logits"] = logits
    rollouts = tuple(
        Rollout("p", space, letters[i : i + 1], np.ones(1, bool), np.zeros(1, np.float32), "", "length", reward=1.0 - i)
        for i in range(2)
    )
    scored = make_batch([Group(Problem("p", " "), rollouts)], backend.tokenizer.pad_id)
    sampling = Sampling(max_new_tokens=1)
    scored = replace(scored, old=backend.score(scored, sampling, session.algorithm.needs))
    update = Update(session.algorithm.loss, sampling, session.algorithm.needs, 0.1, 1.0)
    found = gradient_parts(backend, session.algorithm, scored, session.algorithm.prepare(scored, {}), {}, update)
    assert found["gradient/reward"] == pytest.approx(1 / 2**0.5)
    assert found["gradient/penalty"] == pytest.approx(0.3 * 0.5 / 2**0.5)
    assert found["gradient/cosine"] == pytest.approx(cosine)


def test_a_policy_that_is_its_reference_meets_no_penalty(toy):
    session = toy("algorithm.args.kl_coef=0.3")
    numbers = dict(session.algorithm.state)
    groups, _, _ = gather(session, State(algorithm=numbers), Clock())
    scored = session.scored(make_batch(session.algorithm.select(groups), session.backend.tokenizer.pad_id))
    found = parts_of(session, scored, session.algorithm.prepare(scored, numbers), numbers)
    assert found["gradient/penalty"] == pytest.approx(0.0, abs=1e-9) and found["gradient/reward"] > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_a_coefficient_nothing_is_measured(algorithm, toy):
    session, scored, _, _ = moved(toy, f"algorithm.name={algorithm}", "algorithm.args.kl_coef=0.0")
    numbers = dict(session.algorithm.state)
    assert parts_of(session, scored, session.algorithm.prepare(scored, numbers), numbers) == {}


def test_gradients_that_take_too_much_memory_are_not_compared(toy, monkeypatch):
    session, scored, batch, numbers = moved(toy)
    monkeypatch.setattr(type(session.backend), "gradient_products", lambda *arguments: None)
    assert parts_of(session, scored, batch, numbers) == {}
