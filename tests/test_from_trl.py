"""The code of the pages for users of other trainers runs, and every setting that they name exists."""

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import steadyrl
from steadyrl.core import config
from steadyrl.core.rundir import read_lines
from steadyrl.python.train import train
from tests import needs

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "from-trl.md").read_text()
FROM_VERL = (DOCS / "from-verl.md").read_text()
OF_TRAIN = {
    "max_new_tokens": 8,
    "prompts_per_step": 2,
    "steps": 2,
    "epochs": 0,
    "evaluate": {"problems": 2},
    "rollouts_every": 1,
    "preflight": "off",
    "device": "cpu",
    "progress": False,
}
SMALL = ["run.steps=2", "run.epochs=0", "run.rollouts_every=1", "run.preflight=off", "backend.device=cpu"]

# The form of trl-lib/DeepMath-103K: a conversation of one message, and the solution as text.
DEEP_MATH = [
    {"prompt": [{"role": "user", "content": f"one and {word} is"}], "solution": f"${n}$"}
    for n, word in enumerate(["one", "two", "three", "old", "new", "red"])
]
# What the library of that name does with them, where the hub cannot be reached.
DATASETS = """
import json

def load_dataset(name, split):
    assert (name, split) == ("trl-lib/DeepMath-103K", "train")
    with open("rows.json") as file:
        return json.load(file)
"""
# The parameters and the kind of result of trl.rewards.accuracy_reward.
STAND_IN = """
def accuracy_reward(completions, solution, log_extra=None, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    log_extra("solution", list(solution))
    return [None if gold == "$0$" else float(content.count("e")) for content, gold in zip(contents, solution)]
"""
GSM8K = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"the cat and {n} dogs"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(n)},
        "extra_info": {"index": n, "split": "train"},
    }
    for n in range(4)
]


def block(language, number=0, page=PAGE):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[number]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "datasets", raising=False)  # a stand-in takes its place
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def rollouts(run):
    return [line for step in range(2) for line in read_lines(run.rollouts_file(step))]


@pytest.mark.parametrize("reward", ["trl.rewards", "stand_in"])
@pytest.mark.filterwarnings("ignore")  # of TRL and what it imports
def test_the_example_of_trls_readme_runs_with_four_new_lines(folder, monkeypatch, tiny_models, reward):
    monkeypatch.setattr(steadyrl, "train", train)
    if reward == "trl.rewards":
        needs.skip_without_packages("trl", "math_verify", extra="torch,data", beside="trl math-verify")
    diff = block("diff").splitlines()
    assert sum(line.startswith("+") for line in diff) == 4
    assert all(line[:1] in ("+", "-", " ", "") for line in diff)
    program = "\n".join(line[1:] for line in diff if not line.startswith("-"))
    (folder / "rows.json").write_text(json.dumps(DEEP_MATH))
    (folder / "datasets.py").write_text(DATASETS)
    (folder / "stand_in.py").write_text(STAND_IN)
    for name, small in {
        "Qwen/Qwen2.5-0.5B-Instruct": str(tiny_models["llama"]),
        "trl.rewards": reward,
        "prompts=dataset,": f"prompts=dataset, **{OF_TRAIN},",
    }.items():
        assert name in program
        program = program.replace(name, small)
    found = {}
    exec(program, found)
    run = found["run"]
    assert run.status == "finished"
    function = importlib.import_module(reward).accuracy_reward
    solutions = {row["prompt"][0]["content"]: row["solution"] for row in DEEP_MATH}
    lines = rollouts(run)
    assert len(lines) == 2 * 2 * 8
    for line in lines:
        assert line["messages"] == [{"role": "user", "content": line["prompt"]}]
        message = [{"role": "assistant", "content": line["completion"]}]
        (expected,) = function([message], [solutions[line["prompt"]]], log_extra=lambda column, values: None)
        assert (line["reward"], line["parts"].get("accuracy_reward")) == (expected, expected)


def test_the_call_with_the_defaults_of_trl_names_settings_that_exist(folder, monkeypatch, tiny_models):
    call = block("python").replace("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_models["llama"]))

    def called(model, prompts, reward, **settings):
        return train(model, prompts, reward, **{**settings, **OF_TRAIN})

    monkeypatch.setattr(steadyrl, "train", called)
    names = {"steadyrl": steadyrl, "dataset": DEEP_MATH, "accuracy_reward": lambda completion: completion.count("e")}
    exec(call, names)
    resolved = names["run"].resolved()
    assert (resolved["model"]["lora_rank"], resolved["update"]["learning_rate"]) == (0, 1e-6)
    assert resolved["algorithm"]["args"]["scale"] == "group"


def test_a_parquet_file_of_verl_trains_with_its_reward_function(folder, tiny_models):
    parquet, arrow = needs.package("pyarrow.parquet", "data"), needs.package("pyarrow", "data")
    (folder / "gsm8k").mkdir()
    for split in ("train", "test"):
        parquet.write_table(arrow.Table.from_pylist(GSM8K), folder / "gsm8k" / f"{split}.parquet")
    (folder / "gsm8k.py").write_text(block("python", page=FROM_VERL))
    settings = tomllib.loads(block("toml", page=FROM_VERL))
    settings["model"]["path"] = str(tiny_models["llama"])
    small = ["sampling.max_new_tokens=8", "rollout.prompts_per_step=2", "evaluate.problems=2"]
    run = steadyrl.run(settings, [*SMALL, *small])
    assert run.status == "finished"
    for line in rollouts(run):
        numbers = re.findall(r"-?\d+", line["completion"])
        assert line["parts"] == {"compute_score": line["reward"], "numbers": float(len(numbers))}
        assert line["unscored"] is None


def test_the_example_of_prompts_is_a_config_with_settings_that_exist():
    """The block with examples as settings."""
    found = config.resolve(tomllib.loads(block("toml", 2)) | {"rewards": {"length": 1.0}})
    assert [message.role for message in found.model.messages_before] == ["system", "user", "assistant"]
