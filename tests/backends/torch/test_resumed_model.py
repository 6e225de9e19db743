"""What a run reads of model.path again when it goes on: the reference, an adapter's base, the tokenizer."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from steadyrl.core.errors import CheckpointError, RunError, SteadyError
from steadyrl.core.rundir import RunDir
from steadyrl.loop.launch import run, sample
from steadyrl.loop.train import Watch
from tests import needs

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


def begin_run(lora_rank=0, kl_coef=0.05, quantize="none"):
    """Begin a run of four steps on the model in the folder "model", and stop it after two."""
    stepped = []
    settings = {
        "model": {"path": "model", "lora_rank": lora_rank},
        "task": {"name": "prompts", "args": {"path": "d.jsonl"}},
        "rewards": {"own_rewards:size": 1.0},
        "algorithm": {"name": "grpo", "args": {"kl_coef": kl_coef}},
        "backend": {"name": "torch", "device": "cpu", "threads": 1, "args": {"quantize": quantize}},
        "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2},
        "sampling": {"max_new_tokens": 4},
        "update": {"epochs": 1, "minibatches": 1},
        "run": {"steps": 4, "preflight": "off", "doctor_every": 0},
        "evaluate": {"problems": 1},
    }
    return run(settings, watch=Watch(step=stepped.append, stop=lambda: len(stepped) == 2))


def enter(folder, monkeypatch):
    """Go to a folder whose modules are imported afresh."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)  # that of an earlier test


@pytest.fixture(scope="module")
def usual(tiny_models, tmp_path_factory):
    """Return a folder with a copy of a tiny model, data, a reward, and a run that was begun and stopped."""
    needs.package("torch", "torch")
    folder = tmp_path_factory.mktemp("usual")
    shutil.copytree(tiny_models["llama"], folder / "model")
    (folder / "own_rewards.py").write_text("def size(problem, rollout):\n    return float(len(rollout.text) % 5)\n")
    (folder / "d.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(6)))
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        begin_run()
    return folder


@pytest.fixture
def begun(usual, tmp_path, monkeypatch):
    """Return what begins a run in a folder of the test's own, or gives it a copy of the usual one."""
    shutil.copytree(usual, tmp_path, dirs_exist_ok=True)
    enter(tmp_path, monkeypatch)
    (stopped,) = (tmp_path / "runs").iterdir()
    return lambda **settings: begin_run(**settings) if settings else RunDir(stopped)


def put_another_model(by=0.05):
    """Save a model with other weights into the folder that the run began from."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(by * torch.randn(weight.shape, generator=generator))
    model.save_pretrained("model")


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_another_model_in_the_folder_that_a_run_began_from_stops_its_resume(begun, lora_rank):
    found = begun(lora_rank=lora_rank) if lora_rank else begun()
    before = found.info_file.read_bytes(), found.metrics_file.read_bytes()
    put_another_model()
    with pytest.raises(
        CheckpointError, match=r"model\.path = 'model' is no longer the one that the run began from"
    ) as e:
        run(resume=found)
    assert "\n" not in str(e.value) and "000002/policy" in str(e.value)
    assert (found.info_file.read_bytes(), found.metrics_file.read_bytes()) == before


def test_a_run_whose_folder_is_as_it_was_goes_on(begun):
    found = begun()
    put_another_model(by=0.0)
    Path("model").rename("moved")
    assert run(overrides=["model.path=moved"], resume=found).status == "finished"
    assert (found.checkpoint_folder(4) / "reference" / "probe.json").is_file()


def test_a_run_that_refers_to_no_model_goes_on_with_its_own_weights(begun):
    found = begun(kl_coef=0.0)
    assert not (found.checkpoint_folder(2) / "reference").exists()
    put_another_model()
    assert run(resume=found).status == "finished"


def test_a_policy_is_sampled_whatever_became_of_its_reference(begun):
    found = begun()
    expected = sample(found, "say 3", samples=1)
    put_another_model()
    assert sample(found, "say 3", samples=1) == expected


def other_template():
    file = Path("model/chat_template.jinja")
    if file.is_file():
        file.write_text("Hello. " + file.read_text())
        return
    file = Path("model/tokenizer_config.json")
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "chat_template": "Hello. " + config["chat_template"]}))


def other_words():
    file = Path("model/tokenizer.json")
    whole = json.loads(file.read_text())
    words = whole["model"]["vocab"]
    first, second = [word for word in words if len(word) == 1 and word.isalpha()][:2]
    words[first], words[second] = words[second], words[first]
    file.write_text(json.dumps(whole))


@pytest.mark.parametrize("change", [other_template, other_words])
def test_another_tokenizer_or_template_stops_a_resume(begun, change):
    found = begun()
    change()
    with pytest.raises(
        SteadyError, match=r"the tokenizer or the chat template of model\.path = 'model' changed"
    ) as caught:
        run(resume=found, accept_changed_data=True)
    assert isinstance(caught.value, RunError) and "000002/policy' has a copy" in str(caught.value)
    for copied in (found.checkpoint_folder(2) / "policy").glob("*token*"):
        shutil.copy(copied, "model")
    for copied in (found.checkpoint_folder(2) / "policy").glob("chat_template*"):
        shutil.copy(copied, "model")
    assert run(resume=found).status == "finished"


def test_changed_code_of_a_reward_is_said_and_goes_on(begun):
    found = begun()
    notes = []
    with Path("own_rewards.py").open("a") as file:
        file.write("# corrected\n")
    run(resume=found, watch=Watch(note=notes.append))
    assert [note for note in notes if "'own_rewards' changed since the run began" in note]
    again = begin_run()
    notes.clear()
    run(resume=again, watch=Watch(note=notes.append))
    assert not [note for note in notes if "changed" in note]
