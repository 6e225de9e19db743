"""A trust-region step: conjugate gradients by hand, the KL's bound, and the way back where nothing helps."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import steadyrl_trpo as trpo  # noqa: E402

from steadyrl.core import config  # noqa: E402
from steadyrl.core.errors import ConfigError  # noqa: E402
from steadyrl.core.rundir import RunDir  # noqa: E402
from steadyrl.loop.rollout.collect import collect  # noqa: E402
from steadyrl.loop.train import Watch, open_session, train  # noqa: E402
from steadyrl.maths.batch import make_batch  # noqa: E402


def vowels(problem, rollout):
    return sum(letter in "aeiou" for letter in rollout.text) / max(1, len(rollout.text))


@pytest.fixture
def settings(tmp_path):
    """Return a small run of the base model that ships with steadyrl."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"the {word}"}) + "\n" for word in "cat dog bird fish".split()))
    return {
        "run": {"steps": 2, "checkpoint_every": 1, "folder": str(tmp_path), "preflight": "off", "doctor_every": 0},
        "model": {"path": "base"},
        "backend": {"device": "cpu", "threads": 1},
        "task": {"name": "prompts", "args": {"path": str(prompts), "heldout": str(prompts)}},
        "rewards": {f"{__name__}:vowels": 1.0},
        "sampling": {"max_new_tokens": 3},
        "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2},
        "update": {"epochs": 1, "minibatches": 1},
        "algorithm": {"name": "steadyrl_trpo", "args": {"iterations": 3}},
        "evaluate": {"problems": 1},
    }


@pytest.fixture
def prepared(settings):
    """Return a session and a batch whose advantages do not depend on what was drawn."""
    session = open_session(config.resolve(settings))
    groups = collect(session.backend, session.problems[:2], 2, session.sampling, (0, 0))
    groups = [replace(g, rollouts=tuple(replace(r, reward=float(n)) for n, r in enumerate(g.rollouts))) for g in groups]
    batch = make_batch(groups, session.backend.tokenizer.pad_id)
    scores = session.backend.score(batch, session.sampling, session.algorithm.needs)
    return session, session.algorithm.prepare(replace(batch, old=scores), {})


def weights(backend):
    with backend.moving() as named:
        return {name: weight.detach().clone() for name, weight in named.items()}


def step(session, batch, **args):
    return trpo.trust_region_step(session.backend, batch, session.update_at(0.0), trpo.Settings(**args))


def test_conjugate_gradients_solve_a_system_of_two_by_hand():
    # 4x + y = 1, x + 3y = 2: x = 1/11, y = 7/11
    matrix = np.array([[4.0, 1.0], [1.0, 3.0]])
    solution = trpo.conjugate_gradient(lambda v: matrix @ v, np.array([1.0, 2.0]), 2)
    assert solution == pytest.approx([1 / 11, 7 / 11])


def test_conjugate_gradients_end_early_where_they_are_done_or_lost():
    calls = []

    def product(v):
        calls.append(1)
        return v

    assert trpo.conjugate_gradient(product, np.array([3.0, 4.0]), 50) == pytest.approx([3.0, 4.0])
    assert len(calls) == 1
    assert trpo.conjugate_gradient(lambda v: -v, np.array([1.0]), 5) == pytest.approx([0.0])


def test_the_curvature_is_the_fisher_matrix_of_the_tokens(prepared):
    """Against the mean of outer products of each token's gradient of log p."""
    session, batch = prepared
    landscape = trpo.Landscape(session.backend, batch, session.update_at(0.0))
    rows, columns = np.nonzero(batch.completion_mask)
    scores = []
    for row, column in zip(rows, columns, strict=True):

        def of_one(xp, new, arrays, count, place=(row, column)):
            return new.logprobs[place], {}

        scores.append(landscape.gradient(of_one)[0])
    along = sum(scores) / len(scores)  # a direction in which the policy changes
    expected = sum(score * (score @ along) for score in scores) / len(scores)
    product = landscape.curvature(along)
    assert float((product - expected).norm() / expected.norm()) < 0.02  # of differences over a hundredth, in float32


@pytest.mark.parametrize("max_kl", [pytest.param(1e-4, marks=pytest.mark.weekly), 1e-2])
def test_a_step_improves_the_surrogate_within_the_bound(prepared, max_kl):
    session, batch = prepared
    before = trpo.Landscape(session.backend, batch, session.update_at(0.0)).gradient(trpo.surrogate_loss)[1]
    stats = step(session, batch, max_kl=max_kl, iterations=5)
    after = trpo.Landscape(session.backend, batch, session.update_at(0.0)).gradient(trpo.surrogate_loss)[1]
    total, count = after["kl_old_k3"]
    assert after["loss/total"][0] < before["loss/total"][0]
    assert 0.1 * max_kl < total / count <= max_kl
    assert stats["kl_old_k3"] == pytest.approx(after["kl_old_k3"])
    assert 0 < stats["trust_region/scale"][0] <= 1


@pytest.mark.parametrize("broken", ["bound", "advantages", "memory"])
def test_where_no_step_is_made_the_weights_stay(prepared, broken, monkeypatch):
    session, batch = prepared
    start = weights(session.backend)
    if broken == "bound":
        stats = step(session, batch, max_kl=1e-30, iterations=1, halvings=1)  # rounded away
        assert stats["trust_region/scale"] == (0.0, 1.0)
    elif broken == "advantages":
        stats = step(session, replace(batch, advantages=np.zeros_like(batch.advantages)))
        assert stats["grad_norm"] == (0.0, 1.0)
    else:
        calls = iter([session.backend.gradients] * 2)
        monkeypatch.setattr(session.backend, "gradients", lambda *arguments: next(calls)(*arguments))
        with pytest.raises(StopIteration):
            step(session, batch)
    assert all(torch.equal(weight, start[name]) for name, weight in weights(session.backend).items())
    assert all(weight.grad is None for weight in session.backend.trainable().values()) or broken == "advantages"


def test_a_run_stays_within_the_bound_and_goes_on_as_if_never_stopped(settings, tmp_path):
    def opened():
        return open_session(config.resolve(settings))

    whole, broken = RunDir(tmp_path / "whole"), RunDir(tmp_path / "broken")
    train(opened(), whole)
    done = []
    assert train(opened(), broken, 0, Watch(step=done.append, stop=lambda: len(done) == 1)) == "interrupted"
    assert train(opened(), broken, 1) == "finished"
    for a, b in zip(whole.metrics(), broken.metrics(), strict=True):
        assert a["trust_region/scale"] == b["trust_region/scale"]
        assert a["kl_old_k3"] == b["kl_old_k3"] <= 0.01
    assert max(record["kl_old_k3"] for record in whole.metrics()) > 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("autopilot.mode=act", "update.learning_rate has no effect with TRPO"),
        ("backend.name=toy", "backend.name: got 'toy'; TRPO moves the weights of 'torch' itself"),
    ],
)
def test_what_cannot_move_its_weights_is_refused(settings, override, message):
    data = {**settings, "backend": {}}
    assert config.resolve(data).algorithm.args.max_kl == 0.01
    with pytest.raises(ConfigError, match=message):
        config.resolve(data, [override])


def test_a_single_rollout_is_refused(settings):
    with pytest.raises(ConfigError, match=r"compares .* set it to 2 or more"):
        open_session(config.resolve(settings, ["rollout.samples_per_prompt=1"]))


def test_the_distribution_names_the_module():
    project = tomllib.loads((Path(trpo.__file__).parent / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["steadyrl.algorithm"] == {"trpo": trpo.__name__}
