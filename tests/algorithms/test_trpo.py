"""A trust-region step: conjugate gradients by hand, the KL's bound, and the way back where nothing helps."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.algorithms.natural import Region, conjugate_gradient, curvature_loss, natural_step
from steadyrl.algorithms.trpo import surrogate_loss
from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from steadyrl.core.metrics import Clock
from steadyrl.core.rundir import RunDir
from steadyrl.loop.checkpoint import State
from steadyrl.loop.train import gather, one_step, open_session, train
from steadyrl.maths.batch import make_batch


def test_conjugate_gradients_solve_a_system_of_two_by_hand():
    # 4x + y = 1, x + 3y = 2: x = 1/11, y = 7/11
    matrix = np.array([[4.0, 1.0], [1.0, 3.0]])
    found = conjugate_gradient(lambda v: matrix @ v, np.array([1.0, 2.0]), 2)
    assert found == pytest.approx([1 / 11, 7 / 11])


def test_conjugate_gradients_end_early_where_they_are_done_or_lost():
    calls = []

    def product(v):
        calls.append(1)
        return v

    assert conjugate_gradient(product, np.array([3.0, 4.0]), 50) == pytest.approx([3.0, 4.0])
    assert len(calls) == 1
    assert conjugate_gradient(lambda v: -v, np.array([1.0]), 5) == pytest.approx([0.0])


@pytest.fixture
def prepared(toy):
    """Return a toy session of TRPO and a batch whose advantages are known."""
    session = toy("algorithm.name=trpo", "rollout.samples_per_prompt=4", "sampling.max_new_tokens=4")
    groups, _, _ = gather(session, State(), Clock())
    batch = make_batch(session.algorithm.select(groups), session.backend.tokenizer.pad_id)
    batch = replace(batch, old=session.backend.score(batch, session.sampling, session.algorithm.needs))
    return session, session.algorithm.prepare(batch, {})


def test_the_curvature_is_the_fisher_matrix_of_the_tokens(prepared):
    """Against sums of outer products of each token's gradient of log p, which the toy policy has in closed form."""
    session, batch = prepared
    backend = session.backend
    direction = np.random.default_rng(0).normal(size=backend.weights().shape)
    rows, columns = np.nonzero(batch.completion_mask)
    table = backend.parameters["logits"]
    v = direction[: table.size].reshape(table.shape)
    expected = np.zeros_like(table)
    for row, column in zip(rows, columns, strict=True):
        previous, chosen = batch.tokens[row, column - 1], batch.tokens[row, column]
        score = -np.exp(table[previous]) / np.exp(table[previous]).sum()
        score[chosen] += 1.0
        expected[previous] += score * (score @ v[previous]) / len(rows)
    start, tiny = backend.weights(), 1e-5
    sides = []
    for sign in (1, -1):
        backend.set_weights(start + sign * tiny * direction)
        sides.append(backend.gradient(batch, curvature_loss, session.sampling, frozenset())[0])
    measured = (sides[0] - sides[1]) / (2 * tiny)
    assert measured[: table.size].reshape(table.shape) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("max_kl", [1e-4, 1e-2, 0.3])
def test_a_step_improves_the_surrogate_within_the_bound(prepared, max_kl):
    session, batch = prepared
    region = Region(max_kl=max_kl, iterations=10, damping=0.1, halvings=10)
    before = session.backend.gradient(batch, surrogate_loss, session.sampling, frozenset())[1]["loss/total"][0]
    stats = natural_step(session.backend, batch, session.algorithm, session.sampling, region)
    after = session.backend.gradient(batch, surrogate_loss, session.sampling, frozenset())[1]
    total, count = after["kl_old_k3"]
    assert after["loss/total"][0] < before
    assert 0.1 * max_kl < total / count <= max_kl
    assert stats["kl_old_k3"] == after["kl_old_k3"]
    assert 0 < stats["trust_region/scale"][0] <= 1


def test_where_no_step_helps_the_weights_stay(prepared):
    session, batch = prepared
    start = session.backend.weights()
    region = Region(max_kl=1e-40, iterations=10, damping=0.1, halvings=3)  # rounded away
    stats = natural_step(session.backend, batch, session.algorithm, session.sampling, region)
    assert stats["trust_region/scale"] == (0.0, 1.0)
    assert np.array_equal(session.backend.weights(), start)


def test_equal_rewards_move_nothing(prepared):
    session, batch = prepared
    start = session.backend.weights()
    equal = replace(batch, advantages=np.zeros_like(batch.advantages))
    region = Region(max_kl=0.01, iterations=10, damping=0.1, halvings=3)
    stats = natural_step(session.backend, equal, session.algorithm, session.sampling, region)
    assert stats["grad_norm"] == (0.0, 1.0)
    assert np.array_equal(session.backend.weights(), start)


def test_trpo_learns_the_toy_task_and_goes_on_as_if_never_stopped(toy, whole_and_broken):
    overrides = ("algorithm.name=trpo", "update.epochs=1", "update.minibatches=1", "run.steps=8")
    learned = [*overrides, "algorithm.args.max_kl=0.3", "rollout.samples_per_prompt=4"]
    session, state = toy(*learned), State()
    rewards = [one_step(session, state)[1]["reward/mean"] for _ in range(20)]
    assert np.mean(rewards[-2:]) > np.mean(rewards[:2]) + 0.1
    whole, broken = whole_and_broken(lambda: toy(*overrides))
    assert [r["reward/mean"] for r in whole.metrics()] == [r["reward/mean"] for r in broken.metrics()]


@pytest.mark.parametrize("mode", ["advise", "act"])
def test_an_autopilot_of_a_rate_that_moves_nothing_is_refused(mode):
    data = {"rewards": {"length": 1.0}, "algorithm": {"name": "trpo"}}
    assert config.resolve(data).autopilot.mode == "off"
    with pytest.raises(ConfigError) as caught:
        config.resolve(data, [f"autopilot.mode={mode}"])
    assert str(caught.value) == (
        f"autopilot.mode is '{mode}', but update.learning_rate has no effect with algorithm.name = 'trpo', where "
        "algorithm.args.max_kl says how far a step goes; set autopilot.mode to 'off'"
    )


class NoGradients:
    """A backend that keeps its gradients to itself."""


def test_a_backend_without_gradients_is_refused(prepared):
    session, batch = prepared
    with pytest.raises(ConfigError, match="this backend gives none"):
        natural_step(NoGradients(), batch, session.algorithm, session.sampling, Region(0.01, 1, 0.1, 1))


def test_torch_makes_the_step_within_the_bound(tiny_models, tmp_path, toy):
    prompts = toy().config.task.args.path
    settings = {
        "run": {"steps": 2, "folder": str(tmp_path), "preflight": "off", "doctor_every": 0},
        "model": {"path": str(tiny_models["llama"]), "chat_template": "never"},
        "task": {"name": "prompts", "args": {"path": prompts}},
        "rewards": {"toy_rewards:share_of_a": 1.0},
        "sampling": {"max_new_tokens": 6},
        "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4},
        "update": {"epochs": 1, "minibatches": 1},
        "algorithm": {"name": "trpo", "args": {"max_kl": 0.01, "iterations": 5}},
        "evaluate": {"problems": 2},
    }
    run = RunDir(tmp_path / "run")
    train(open_session(config.resolve(settings)), run)
    for record in run.metrics():
        assert record["trust_region/scale"] > 0
        assert 0 < record["kl_old_k3"] <= 0.01
