"""Whole runs on a CUDA device that is pretended, by the settings of a user: what only a GPU would show, see elsewhere.

Precision is bfloat16, products of float32 are TF32, and sums come in any order, as on a GPU by default; where a number
is held to that of the CPU, the run is in float32.
"""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.metrics import repeatable
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Sampling
from steadyrl.loop.preflight.run import preflight
from steadyrl.loop.preflight.trial import begin_trial
from steadyrl.loop.preflight.trial_updates import make_trial_updates
from steadyrl.loop.train import open_session, train
from tests import needs
from tests.backends.ppo_batch import NARROW, prompts_of, scored_batch, step
from tests.rounding import NATS

torch = needs.package("torch")
needs.skip_without_packages("transformers", "peft", extra="torch")

from steadyrl.backends.torch.read.packed import pack  # noqa: E402
from steadyrl.backends.torch.save.export import export_policy  # noqa: E402
from tests.backends.torch.elsewhere import pretended  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
ROUNDED_GAP = 0.1  # nats in the mean: 30 layers in bfloat16 come to 0.02
SCRIPTS = str(Path(__file__).parents[3] / "scripts")
GRPO, ADAPTER = "algorithm.name=grpo", "model.lora_rank=4"
ONE, SEVERAL = ((f"update.epochs={n}", f"update.minibatches={n}") for n in (1, 2))
TALK = ("task.name=talk_task:TalkTask", "task.args={}")
WAYS = {
    "PPO": SEVERAL,
    "PPO, several updates, weights in bfloat16": (*SEVERAL, "backend.args.weights=bf16"),
    "GRPO, layers computed again": (GRPO, "backend.args.gradient_checkpointing=true", *ONE),
    "GRPO without a reference, several updates": (GRPO, "algorithm.args.kl_coef=0", *SEVERAL),
    "GRPO, adapter, several updates": (GRPO, ADAPTER, *SEVERAL),
    "turns": (GRPO, *TALK, *ONE),
}
EVALUATED = {"PPO", "turns"}
# Of each way to read a model: experts and recurrences, windows, a cap on logits, tensors of the CPU as indices.
FAMILIES = ("qwen3_next", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("gemma3", "gemma2", "gpt2")))


@pytest.fixture
def opened(tiny_models, tmp_path, monkeypatch):
    """Return a function that opens a session of a tiny model on the device that "auto" finds.

    Few evaluate: each of them takes as long as a step.
    """
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    prompts = tmp_path / "prompts.jsonl"
    texts = [f"{words} {i}" for i in range(4) for words in ("the red cat", "a small dog", "two old birds hear", "one")]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))

    def open_one(*overrides, evaluates=False):
        settings = {
            "run": {"steps": 1, "checkpoint_every": 1, "folder": str(tmp_path / "runs")},
            "model": {"path": str(tiny_models["llama"])},
            "backend": {"threads": 1},
            "task": {"name": "prompts", "args": {"path": str(prompts)}},
            "rewards": {"length": 1.0},
            "sampling": {"max_new_tokens": 4},
            "rollout": {"prompts_per_step": 4, "samples_per_prompt": 2},
            "evaluate": {"problems": 1},
        }
        session = open_session(config.resolve(settings, overrides))
        return session if evaluates else replace(session, heldout=())

    return open_one


def metrics(session, folder):
    """Train, and return the metrics of each step but its times."""
    folder.mkdir()
    assert train(session, RunDir(folder)) == "finished"
    return [repeatable(line) for line in RunDir(folder).metrics()]


# Several updates without a reference have nothing of their own on a device.
TRIED = [pytest.param(way, marks=pytest.mark.weekly if "without a reference" in way else ()) for way in WAYS]


@pytest.mark.parametrize("way", TRIED)
def test_a_run_finishes_where_sampler_and_trainer_differ_by_rounding(opened, tmp_path, way):
    with pretended() as device:
        session = opened(*WAYS[way], evaluates=way in EVALUATED)
        described = session.backend.describe()
        assert (described["device"], described["precision"]) == ("cuda", "bf16")
        steps = metrics(session, tmp_path / "run")
    assert len(steps) == 1
    written = {file.name for file in (tmp_path / "run" / "evaluations").glob("*")}
    assert written >= {"before.jsonl", "after.jsonl"} or way not in EVALUATED
    assert device.rounded > 0 and device.casts > 0
    for line in steps:
        assert all(np.isfinite(v) for v in line.values() if isinstance(v, float)), line
        assert line["sampler_gap"] <= ROUNDED_GAP
        assert line["grad_norm"] > 0


@pytest.mark.parametrize("way", ["PPO", pytest.param("turns", marks=pytest.mark.weekly)])
def test_in_float32_a_run_has_the_numbers_of_the_cpu(opened, tmp_path, way):
    exact = ("backend.precision=fp32", *WAYS[way])
    with pretended(any_order=False):
        there = metrics(opened(*exact), tmp_path / "there")
    here = metrics(opened("backend.device=cpu", *exact), tmp_path / "here")
    for line, expected in zip(there, here, strict=True):
        assert line.keys() == expected.keys()
        for name in expected:
            if isinstance(expected[name], float):
                assert line[name] == pytest.approx(expected[name], rel=1e-3, abs=NATS), name


def test_a_judge_by_likelihood_scores_in_full_float32(opened, tmp_path, tiny_models):
    judge = f'rewards.judge={{mode="likelihood", model="{tiny_models["llama"]}"}}'
    overrides = ("algorithm.name=rlaif", judge, *ONE)
    with pretended():
        there = metrics(opened(*overrides, "backend.precision=fp32"), tmp_path / "there")
    here = metrics(opened(*overrides, "backend.device=cpu"), tmp_path / "here")
    assert there[0]["reward/mean"] == pytest.approx(here[0]["reward/mean"], abs=2 * NATS)


def test_the_preflight_passes(opened):
    with pretended():
        verdicts = preflight(opened(*ONE))
    # Random weights end a text by chance, if ever.
    assert [(v.check, v.message) for v in verdicts if v.state == "found" and v.check != "completions"] == []


@pytest.mark.parametrize("way", [pytest.param("PPO", marks=pytest.mark.weekly), "GRPO, adapter, several updates"])
def test_a_resumed_run_has_the_numbers_of_an_unbroken_one_where_sums_are_in_one_order(opened, whole_and_broken, way):
    with pretended(any_order=False):
        runs = whole_and_broken(
            lambda: opened("run.steps=2", "run.checkpoint_every=2", *WAYS[way], "update.epochs=1"), after=1
        )
        names = ("reward/mean", "grad_norm", "sampler_gap", "loss/total", "kl_old_k1")
        found = [[[line.get(name) for name in names] for line in run.metrics()] for run in runs]
    assert found[0] == found[1]


@pytest.mark.parametrize("way", ["GRPO, adapter, several updates"])
def test_the_autopilot_takes_steps_back_and_trains_on(opened, tmp_path, way):
    with pretended():
        session = opened(
            "autopilot.mode=act", "update.learning_rate=0.01", "update.warmup_steps=0", "run.steps=2", *WAYS[way],
            "update.epochs=1",
        )  # fmt: skip
        steps = metrics(session, tmp_path / "run")
    back = [line for line in RunDir(tmp_path / "run").actions() if line["kind"] == "rollback"]
    assert back and back[0]["done"]
    assert [line["step"] for line in steps] == [0, 1]
    assert steps[-1]["learning_rate"] < 0.01
    assert all(line["grad_norm"] > 0 for line in steps)


def test_the_preflight_repeats_updates_in_one_order_and_times_others(opened):
    ordered = []

    def noting(step):
        def noted(*args):
            ordered.append(torch.are_deterministic_algorithms_enabled())
            return step(*args)

        return noted

    with pretended():
        session = opened(*ONE)
        session.backend.optimizer.step = noting(session.backend.optimizer.step)
        found = make_trial_updates(begin_trial(session))
    assert ordered == [True] * 4 + [False] * 2
    assert {finding.check: finding.state for finding in found.findings}["continuation"] == "ok"
    assert not torch.are_deterministic_algorithms_enabled()


def test_with_a_setting_sums_are_in_one_order(opened, tmp_path):
    exact = ("backend.args.deterministic=true", *ONE)
    with pretended():
        assert metrics(opened(*exact), tmp_path / "a") == metrics(opened(*exact), tmp_path / "b")


def test_offloaded_activations_leave_the_device_and_change_no_number(opened):
    growth, norms, size = [], [], 0
    for offload in ("false", "true"):
        with pretended(any_order=False) as device:
            backend = opened(
                "backend.precision=fp32", "backend.args.gradient_checkpointing=true",
                f"backend.args.activation_offload={offload}", "algorithm.name=ppo",
            ).backend  # fmt: skip
            batch = scored_batch(backend, NARROW)
            before = device.bytes()
            hidden, packed = backend._read(batch), pack(batch, backend.device)
            growth.append(device.bytes() - before - hidden.nbytes)
            size = packed.ids.numel() * hidden.shape[1] * 4
            norms.append(step(backend, batch)["grad_norm"])
    assert norms[0] == norms[1]
    # The input of each layer; ids and places of the embedding and of the last choice go as well.
    assert growth[0] - growth[1] >= size * len(backend.split.body.layers)


@pytest.mark.parametrize("adapter", [pytest.param((), marks=pytest.mark.weekly), (ADAPTER,)])
def test_what_was_trained_is_exported_and_is_the_same_policy_on_a_cpu(opened, tmp_path, adapter):
    with pretended():
        session = opened(*adapter, *ONE)
        metrics(session, tmp_path / "run")
        checkpoint = RunDir(tmp_path / "run").checkpoint_folder(1)
        (tmp_path / "exported").mkdir()
        export_policy(session.config, checkpoint, tmp_path / "exported", merge=bool(adapter))
    here = opened("backend.device=cpu", *adapter).backend
    here.load(checkpoint)  # which holds it to the log-probs that were written on the device
    whole = opened("backend.device=cpu", f"model.path={tmp_path / 'exported'}").backend
    for one, other in zip(*(drawn(backend) for backend in (here, whole)), strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)


def drawn(backend):
    return backend.generate(prompts_of(backend), Sampling(max_new_tokens=4), range(6))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore")  # of transformers, on shapes this small
def test_a_family_is_sampled_scored_trained_saved_and_resumed_on_the_device(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    families = importlib.import_module("model_families")
    families.write_model(name, tmp_path / name)
    with pretended(any_order=False):
        first, second = (families.open_model(tmp_path / name, "backend.device=cuda") for _ in range(2))
        batch = families.batch_of(first)
        assert np.abs(batch.old.logprobs - batch.sampling_logprobs)[batch.completion_mask].mean() <= ROUNDED_GAP
        families.step(first, batch)
        (tmp_path / "saved").mkdir()
        first.save(tmp_path / "saved")
        second.load(tmp_path / "saved")
        for backend in (first, second):
            families.step(backend, batch)
        same = zip(first.trainable().values(), second.trainable().values(), strict=True)
        assert all(torch.equal(one, other) for one, other in same)
