"""Runs of the toy backend to compare, and their config."""

import json
from multiprocessing import forkserver
from pathlib import Path

import pytest

from steadyrl.core import config
from steadyrl.lab.launchers import processes
from steadyrl.loop import record
from steadyrl.loop.train import open_session, train

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def light_server():
    """Fork commands without PyTorch, which takes six seconds to load, and leave no such server to other tests."""
    if forkserver._forkserver._forkserver_pid is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "LOADED", processes.LOADED[:3])
        processes._server.cache_clear()
        yield
        forkserver._forkserver._stop()
        processes._server.cache_clear()


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Return a function from overrides to a config whose 26 held-out problems have three levels of difficulty."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.syspath_prepend(Path(__file__).parent.parent)

    def write(name, prompts):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"prompt": p, "id": p, "difficulty": i % 3}) + "\n" for i, p in prompts))
        return str(path)

    paths = {
        "path": write("train.jsonl", enumerate(letter * 3 for letter in LETTERS)),
        "heldout": write("heldout.jsonl", enumerate(letter * 2 for letter in LETTERS)),
    }

    def resolve(*overrides):
        data = {
            "run": {"steps": 4, "checkpoint_every": 2, "folder": str(tmp_path / "runs"), "doctor_every": 0},
            "backend": {"name": "toy"},
            "task": {"name": "prompts", "args": paths},
            "rewards": {"toy_rewards:first_letter": 1.0},
            "sampling": {"max_new_tokens": 4},
            "rollout": {"prompts_per_step": 8, "samples_per_prompt": 4},
            "update": {"learning_rate": 0.3, "warmup_steps": 0, "kl_old_limit": 10.0},
        }
        return config.resolve(data, overrides)

    return resolve


@pytest.fixture
def trained(settings):
    """Return a function that trains a run from overrides and returns its directory."""

    def make(*overrides):
        chosen = settings(*overrides)
        session = open_session(chosen)
        run = record.begin(chosen, "")
        record.close(run, train(session, run), session.config)
        return run

    return make
