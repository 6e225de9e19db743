"""Runs of tiny models, trained once for all tests of this folder."""

import json
from pathlib import Path

import pytest

from steadyrl.core import config
from steadyrl.loop import launch
from tests.integrations.export.training import BASE, WORDS


@pytest.fixture(scope="session")
def trained(tiny_models, tmp_path_factory):
    """Return a function that trains a tiny model once for each set of overrides, and returns the run."""
    root, runs = tmp_path_factory.mktemp("runs"), {}
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    (root / "prompts.jsonl").write_text("".join(json.dumps({"prompt": words}) + "\n" for words in WORDS))

    def train(name, *overrides):
        if (name, overrides) not in runs:
            paths = [f"model.path={tiny_models[name]}", f"run.folder={root / 'runs'}"]
            data = [f'task.args={{path="{root / "prompts.jsonl"}",heldout_share=0.5}}', *overrides]
            runs[name, overrides] = launch.run(config.resolve(BASE, [*paths, *data]))
        return runs[name, overrides]

    yield train
    monkeypatch.undo()
