"""`steadyrl export` and `steadyrl serve` on the command line: what is printed, and errors of one line."""

import json
import sys

import pytest

from steadyrl.cli.main import main
from steadyrl.core import config
from steadyrl.loop import launch


@pytest.fixture
def steadyrl(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["steadyrl", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return run


def test_a_run_of_the_toy_backend_is_refused_in_one_line(steadyrl, toy, tmp_path):
    run = launch.run(config.dump(toy("run.preflight=off", "run.steps=1").config))
    for command in (("export", run.path, "--to", tmp_path / "model"), ("serve", run.path)):
        code, out, error = steadyrl(*command)
        assert (code, out) == (2, "")
        assert error.startswith("error: the run was trained with backend.name = 'toy'") and error.count("\n") == 1


def test_several_runs_need_a_folder_and_a_backend_that_can_be_joined(steadyrl, toy, tmp_path):
    runs = [launch.run(config.dump(toy("run.preflight=off", "run.steps=1").config)).path for _ in range(2)]
    code, out, error = steadyrl("export", *runs)
    assert (code, out) == (2, "") and error == (
        "error: several runs are joined into a folder of their own; give it with --to FOLDER\n"
    )
    code, out, error = steadyrl("export", *runs, "--to", tmp_path / "model")
    assert (code, out) == (2, "") and error.startswith("error: the run was trained with backend.name = 'toy'")
    assert not (tmp_path / "model").exists()


def test_a_run_of_a_model_is_exported_and_then_served(steadyrl, tiny_models, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"red cat {i}"}) + "\n" for i in range(8)))
    run = launch.run(
        {
            "run": {"steps": 1, "folder": str(tmp_path / "runs"), "preflight": "off"},
            "model": {"path": str(tiny_models["llama"]), "lora_rank": 2},
            "backend": {"device": "cpu", "threads": 1},
            "task": {"name": "prompts", "args": {"path": str(prompts)}},
            "rewards": {"length": 1.0},
            "sampling": {"max_new_tokens": 3},
            "rollout": {"prompts_per_step": 2},
            "update": {"minibatches": 1},
        }
    )
    code, out, error = steadyrl("export", run.path)
    assert (code, out) == (0, f"exported: {run.path / 'export'}\n")
    assert error == f"exporting the policy of step 1 (the last) of '{run.path}'\n"
    assert "--enable-lora" in steadyrl("serve", run.path)[1]
    code, out, error = steadyrl("export", run.path)
    assert (code, out) == (2, "") and "is not empty; remove it, or give a folder" in error
    to = tmp_path / "merged"
    assert steadyrl("export", run.path, "--merge", "--checkpoint", "1", "--to", to)[0] == 0
    assert f"transformers serve {to}" in steadyrl("serve", run.path, "--folder", to)[1]
