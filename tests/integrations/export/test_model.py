"""Exported policies: the right checkpoint, equal log-probs without steadyrl, and a card with its figures."""

import json
import re
import shutil
from pathlib import Path

import pytest

import steadyrl
from steadyrl.core import config
from steadyrl.core.errors import CheckpointError, ConfigError, ModelError, RunError
from steadyrl.core.rundir import RunDir, write_json
from steadyrl.integrations.export.model import choose, export
from steadyrl.loop import checkpoint, launch
from steadyrl.loop.checkpoint import Best, State
from steadyrl.loop.evaluate import held_out_score
from steadyrl.show.report.card import copy_licences
from tests import needs
from tests.integrations.export.training import assert_equal_logprobs


@pytest.mark.parametrize(
    "name", ["gpt2", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("llama", "qwen2"))]
)
def test_whole_weights_load_in_transformers_with_equal_logprobs(trained, tmp_path, name):
    transformers, run = needs.package("transformers"), trained(name)
    export(run, tmp_path / "model", "last")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32").eval()
    assert_equal_logprobs(model, run, 3)
    record = json.loads((tmp_path / "model" / "export.json").read_text())
    assert (record["kind"], record["step"], record["last"]) == ("weights", 3, True)


# peft reads a property that transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_an_adapter_loads_in_peft_and_merged_in_transformers_with_equal_logprobs(trained, tiny_models, tmp_path):
    transformers, peft = needs.package("transformers"), needs.package("peft")
    run = trained("llama", "model.lora_rank=4")
    export(run, tmp_path / "adapter", "2")
    export(run, tmp_path / "merged", "2", merge=True)
    adapted = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert_equal_logprobs(adapted, run, 2)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert_equal_logprobs(merged, run, 2)
    assert not list((tmp_path / "merged").glob("adapter*"))
    untrained = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["llama"]).eval()
    with pytest.raises(AssertionError):
        assert_equal_logprobs(untrained, run, 2)


def test_from_python_a_run_exports_what_the_command_does(trained, tmp_path, monkeypatch):
    run = steadyrl.Run.open(trained("llama", "model.lora_rank=4").path)
    export(run, tmp_path / "command", "2", merge=True)
    assert run.export(tmp_path / "python", checkpoint=2, merge=True) == tmp_path / "python"
    files = {folder: sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in ("command", "python")}
    assert files["command"] == files["python"]
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in files]
    assert weights[0] == weights[1]
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ConfigError, match="there is no token"):
        run.export(tmp_path / "refused", push_to_hub="me/policy")
    assert not (tmp_path / "refused").exists()


def test_the_folder_has_the_template_and_the_sampling_and_every_end_token_of_training(trained, tiny_models, tmp_path):
    transformers = needs.package("transformers")
    for name, overrides in (("llama", ()), ("llama", ("model.lora_rank=4",))):
        folder = tmp_path / str(len(overrides))
        export(trained(name, *overrides), folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        talk = [{"role": "user", "content": "red cat"}]
        assert tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True) == (
            "<user>red cat<eos><bot>"
        )
        generation = transformers.GenerationConfig.from_pretrained(folder)
        assert generation.eos_token_id == [1]
        assert (generation.temperature, generation.max_new_tokens, generation.do_sample) == (0.8, 6, True)
        assert json.loads((folder / "export.json").read_text())["chat"] is True


def test_an_export_says_how_the_policy_was_prompted(trained, tmp_path):
    before = '[{ role = "user", content = "red" }, { role = "assistant", content = "cat" }]'
    run = trained("llama", f"model.messages_before={before}", 'sampling.stop=["dog"]')
    export(run, tmp_path / "model")
    record = json.loads((tmp_path / "model" / "export.json").read_text())
    assert record["messages_before"] == [{"role": "user", "content": "red"}, {"role": "assistant", "content": "cat"}]
    assert (record["template_args"], record["stop"]) == ({}, ["dog"])


@pytest.mark.weekly
def test_messages_before_every_prompt_are_in_the_card_and_for_programs(trained, tmp_path):
    before = 'model.messages_before=[{role="system",content="Be brief."}]'
    export(trained("llama", before), tmp_path / "model")
    record = json.loads((tmp_path / "model" / "export.json").read_text())
    assert record["messages_before"] == [{"role": "system", "content": "Be brief."}]
    assert "Before every prompt stood this system message: Be brief." in (tmp_path / "model" / "README.md").read_text()


def test_the_text_around_a_request_is_in_the_card_and_for_programs(trained, tmp_path):
    corpus = ['task.name="search"', 'task.args={corpus="generated",prompt="ask: {request}"}', "rewards={retrieval=1.0}"]
    export(trained("llama", *corpus), tmp_path / "model")
    assert json.loads((tmp_path / "model" / "export.json").read_text())["prompt"] == "ask: {request}"
    assert "```text\nask: {request}\n```" in (tmp_path / "model" / "README.md").read_text()


def test_a_run_without_the_template_says_so(trained, tmp_path):
    export(trained("llama", "model.chat_template=never"), tmp_path / "model")
    assert json.loads((tmp_path / "model" / "export.json").read_text())["chat"] is False
    assert "prompts were given as they are, without a chat template" in (tmp_path / "model" / "README.md").read_text()


def test_whole_weights_are_exported_after_the_base_model_is_gone(trained, tiny_models, tmp_path):
    run = trained("qwen2")
    folder, hidden = tiny_models["qwen2"], tmp_path / "hidden"
    folder.rename(hidden)
    try:
        export(run, tmp_path / "model")
    finally:
        hidden.rename(folder)
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_an_adapter_without_its_base_model_is_refused_and_leaves_nothing(trained, tiny_models, tmp_path):
    run = trained("llama", "model.lora_rank=4")
    folder, hidden = tiny_models["llama"], tmp_path / "hidden"
    folder.rename(hidden)
    try:
        for merge in (True, False):
            with pytest.raises(ModelError, match="there is no model folder"):
                export(run, tmp_path / "model", merge=merge)
    finally:
        hidden.rename(folder)
    assert not list(tmp_path.glob("model*"))


@pytest.mark.parametrize(
    ("overrides", "name", "cut"),
    [
        ((), "model.safetensors", None),
        ((), "model.safetensors", 100),
        ((), "config.json", None),
        ((), "config.json", 50),
        (("model.lora_rank=4",), "adapter_model.safetensors", None),
        (("model.lora_rank=4",), "adapter_config.json", None),
        (("model.lora_rank=4",), "adapter_config.json", 50),
    ],
)
def test_a_checkpoint_without_all_of_its_policy_is_refused_and_leaves_nothing(trained, tmp_path, overrides, name, cut):
    run = RunDir(shutil.copytree(trained("llama", *overrides).path, tmp_path / "run"))
    file = run.checkpoint_folder(3) / "policy" / name
    kept = file.read_bytes()[:cut]
    file.unlink()
    if cut:
        file.write_bytes(kept)
    with pytest.raises(CheckpointError, match=rf"'{file}' is missing or damaged \(.*; delete that checkpoint's folder"):
        export(run, tmp_path / "model", "3")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}, "model-2.safetensors' is missing"),
        ({"weight_map": {}}, r"index.json' is missing or damaged \(it has no 'weight_map'"),
        ([], r"index.json' is missing or damaged \(it holds a list; expected a JSON object"),
    ],
)
def test_weights_in_parts_are_refused_unless_all_of_them_are_there(trained, tmp_path, index, told):
    run = RunDir(shutil.copytree(trained("llama").path, tmp_path / "run"))
    policy = run.checkpoint_folder(3) / "policy"
    (policy / "model.safetensors").rename(policy / "model-1.safetensors")
    (policy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=told):
        export(run, tmp_path / "model", "3")
    (policy / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    export(run, tmp_path / "model", "3")
    assert (tmp_path / "model" / "model-1.safetensors").is_file()


def test_the_card_has_the_figures_of_the_checkpoint(trained, tiny_models, tmp_path):
    run = trained("llama")
    (tiny_models["llama"] / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    (tiny_models["llama"] / "LICENSE").write_text("the terms")
    chosen = export(run, tmp_path / "best", "best")
    other = next(step for step in run.checkpoints() if step != chosen.step)
    export(run, tmp_path / "other", str(other))
    card = (tmp_path / "best" / "README.md").read_text()
    front = card.split("---")[1]
    assert "license: apache-2.0\n" in front and "library_name: transformers\n" in front
    assert (tmp_path / "best" / "LICENSE").read_text() == "the terms"
    found = run.evaluations()
    before = held_out_score(found["before"], 0, "sampled").score
    after = held_out_score(found[f"{chosen.step:06d}"], chosen.step, "sampled").score
    assert before != after
    row = next(line for line in card.splitlines() if line.startswith("| reward | sampled | 4 |")).split("|")
    assert [float(cell) for cell in row[4:7]] == pytest.approx([before, after, after - before], abs=1e-3)
    assert "its figures are biased upward" in card
    assert "its figures are biased upward" not in (tmp_path / "other" / "README.md").read_text()
    assert run.info()["data"]["heldout"]["sha256"] in card
    assert "| update.learning_rate | 0.003 | 0.0003 |" in card
    assert "steadyrl's doctor" in card
    assert str(tmp_path) not in card and str(tiny_models["llama"].parent) not in card, "a card travels"


@pytest.mark.parametrize(
    "front", ["license: a b\n", "license: x\\nevil: y\n", "licence: mit\n", "", "license:\nother: mit\n"]
)
def test_a_licence_that_is_no_name_of_one_is_not_repeated(trained, tiny_models, tmp_path, front):
    (tiny_models["qwen2"] / "README.md").write_text(f"---\n{front}---\n")
    export(trained("qwen2"), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "license:" not in card.split("---")[1]
    assert "names no licence" in card


def test_the_default_is_the_best_checkpoint_or_else_the_last(toy, tmp_path):
    run, backend = RunDir(tmp_path / "run"), toy().backend
    for step, best in ((1, None), (2, Best(2, 0.5, None, None, 1)), (3, Best(2, 0.5, None, None, 1))):
        checkpoint.save(run, backend, State(step=step, algorithm={"kl_coef": 0.1}, best=best), 9)
    assert [(choose(run, word).step, choose(run, word).words) for word in (None, "best", "last", "1")] == [
        (2, "step 2 (the best by held-out score)"),
        (2, "step 2 (the best by held-out score)"),
        (3, "step 3 (the last)"),
        (1, "step 1"),
    ]
    with pytest.raises(RunError, match=r"has no checkpoint after step 7; it has 1, 2, 3"):
        choose(run, "7")
    with pytest.raises(RunError, match=r"--checkpoint is 'worst'; expected best, last or a step"):
        choose(run, "worst")
    checkpoint.forget_after(run, 1)
    assert choose(run, None).words == "step 1 (the last)"
    with pytest.raises(RunError, match=r"chose no best checkpoint: it was trained with evaluate.every = 0"):
        choose(run, "best")


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(RunError, match="has no checkpoint yet"):
        choose(RunDir(tmp_path), None)


def test_a_policy_that_is_no_model_folder_is_refused(toy, tmp_path):
    run = launch.run(config.dump(toy("run.preflight=off", "run.steps=1").config))
    with pytest.raises(ConfigError, match=r"trained with backend.name = 'toy', whose policy is no model folder"):
        export(run, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
)  # peft asks transformers for it
@pytest.mark.parametrize(
    ("overrides", "name"), [((), "llama"), (("model.lora_rank=4",), "llama"), (("model.chat_template=never",), "llama")]
)
def test_the_snippet_of_the_card_runs(trained, tmp_path, monkeypatch, capsys, overrides, name):
    run = trained(name, *overrides)
    export(run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path / "out")
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert next(names["model"].parameters()).dtype == needs.package("torch").float32
    assert names["answer"].ndim == 1 and len(names["answer"]) <= 6
    printed = names["tokenizer"].decode(names["answer"], skip_special_tokens=True)
    assert capsys.readouterr().out.endswith(printed + "\n")
    assert ("`dtype=torch.float32` loads the base model so" in card) == bool("model.lora_rank=4" in overrides)


def test_a_model_of_the_hubs_cache_and_its_data_are_named_in_the_card(trained, tiny_models, tmp_path):
    cached = tmp_path / "hub" / "models--someone--tiny-llama" / "snapshots" / "0123"
    shutil.copytree(tiny_models["llama"], cached)
    shutil.copytree(trained("llama").path, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    settings = run.resolved()
    settings["model"]["path"] = str(cached)
    write_json(run.resolved_file, settings)
    data = {"train": {"problems": 4, "source": "hf://datasets/openai/gsm8k@main/train.parquet"}, "heldout": {}}
    write_json(run.info_file, {**run.info(), "data": data})
    export(run, tmp_path / "out")
    front = (tmp_path / "out" / "README.md").read_text().split("---")[1].splitlines()
    assert "base_model: tiny-llama" not in front
    assert front[front.index("datasets:") + 1] == "- openai/gsm8k"


def test_a_file_that_only_its_owner_could_read_is_readable_as_the_others(trained, tmp_path):
    export(trained("llama"), tmp_path / "out")
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "out").iterdir()}
    (tmp_path / "usual").touch()
    assert modes == {(tmp_path / "usual").stat().st_mode & 0o777}


def test_the_model_that_ships_names_its_licence(tmp_path):
    base = Path(steadyrl.__file__).parent / "backends" / "base-model"
    assert copy_licences(str(base), tmp_path) == "apache-2.0"
