"""Whole runs in MLX: one that changes the framework twice, and one where MLX is not installed."""

import json
import sys
from pathlib import Path

import pytest

import steadyrl
from steadyrl.algorithms import grpo
from steadyrl.backends.mlx import blas, plugin
from steadyrl.core import config
from steadyrl.core.errors import ConfigError, MissingExtraError
from steadyrl.environments.code.sandbox.jails import Limits
from steadyrl.environments.code.sandbox.pool import Sandbox
from tests import needs

EXAMPLES = Path(__file__).parents[3] / "examples"
CONFIGS = sorted(path for path in EXAMPLES.rglob("*.toml") if path.name != "pyproject.toml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_example_is_a_config_of_mlx_but_those_with_a_server_for_torch(path):
    if config.load(path).sampler.engine == "vllm":
        with pytest.raises(ConfigError, match=r"'vllm' serves the weights of backend\.name = 'torch'; got 'mlx'"):
            config.load(path, ["backend.name=mlx"])
    else:
        assert config.load(path, ["backend.name=mlx"]).backend.name == "mlx"


def test_a_number_of_threads_that_nothing_takes_is_said_once(tiny_models, monkeypatch, caplog):
    needs.package("mlx", extra="mlx")
    needs.package("mlx_lm", extra="mlx")
    monkeypatch.setattr(blas, "OPENBLAS", "no-such-library.so")
    for threads in (0, 3):
        settings = {"model": {"path": str(tiny_models["llama"])}, "rewards": {"length": 1.0}}
        found = config.resolve(settings, ["backend.name=mlx", f"backend.threads={threads}"])
        plugin.create(found, grpo.build(grpo.Settings()))
    assert [line for line in caplog.messages if "threads" in line] == [
        "backend.threads = 3 has no effect here: MLX manages its own threads"
    ]


def test_a_run_goes_on_in_the_other_framework_and_comes_back(tiny_models, tmp_path):
    needs.package("mlx", extra="mlx")
    needs.package("mlx_lm", extra="mlx")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in ("the cat", "a dog", "two birds", "one"))
    )
    settings = {
        "run": {"steps": 1, "preflight": "off", "checkpoint_every": 1, "folder": str(tmp_path / "runs")},
        "model": {"path": str(tiny_models["llama"])},
        "backend": {"name": "torch", "device": "cpu"},
        "task": {"name": "prompts", "args": {"path": str(prompts)}},
        "rewards": {"length": 1.0},
        "algorithm": {"name": "ppo"},
        "sampling": {"max_new_tokens": 6},
        "rollout": {"prompts_per_step": 3, "samples_per_prompt": 2},
        "evaluate": {"problems": 1},
    }
    run = steadyrl.run(settings)
    run = steadyrl.run(resume=run, overrides=["run.steps=2", "backend.name=mlx"])
    assert run.resolved()["backend"]["args"]["memory_gib"] == 0.0
    run = steadyrl.run(resume=run, overrides=["run.steps=3", "backend.name=torch"])
    assert run.status == "finished"
    assert [(line["step"], line["attempt"]) for line in run.metrics()] == [(0, 0), (1, 1), (2, 2)]
    assert all(line["grad_norm"] > 0 for line in run.metrics())


def test_programs_run_after_mlx_has_computed():
    """A child forked by a process that has used MLX may hang; the sandbox's workers are programs of their own."""
    needs.package("mlx", extra="mlx")
    import mlx.core as mx

    mx.eval(mx.ones(3) * 2)
    with Sandbox("weak", Limits(wall_s=20.0)) as pool:
        outcome = pool.run("def add(a, b):\n    return a + b\n", "add", [(1, 2)])
    assert [result.value for result in outcome.results] == [3]


def test_without_mlx_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(MissingExtraError, match=r"'mlx' is not installed .* pip install 'steadyrl\[mlx\]'"):
        plugin.create(config.resolve({"rewards": {"length": 1.0}}, ["backend.name=mlx"]), None)
