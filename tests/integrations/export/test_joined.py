"""Joined policies: hand-computed matrices, one policy in every form, and refusals."""

import json
import math
import shutil

import numpy as np
import pytest

from steadyrl.core.config import dump, resolve
from steadyrl.core.errors import ConfigError, ModelError, RunError
from steadyrl.core.rundir import RunDir, write_json
from steadyrl.integrations.export.joined import export_joined
from steadyrl.integrations.export.serve import serve_lines
from tests import needs
from tests.rounding import NATS

LORA = ("model.lora_rank=4", "update.learning_rate=0.03")
NAME = "base_model.model.layer.lora_{}.weight"


def write_adapter(folder, first, second, **settings):
    """Write a checkpoint with an adapter of one module; ``first`` is [rank, in], ``second`` [out, rank]."""
    torch, safetensors = needs.package("torch"), needs.package("safetensors.torch")
    (folder / "policy").mkdir(parents=True)
    tensors = {NAME.format("A"): torch.tensor(first), NAME.format("B"): torch.tensor(second)}
    safetensors.save_file(tensors, folder / "policy" / "adapter_model.safetensors")
    own = {"r": len(first), "lora_alpha": float(len(first)), "rank_pattern": {}, **settings}
    (folder / "policy" / "adapter_config.json").write_text(json.dumps(own))
    return folder


def difference(folder):
    """Return what an adapter adds to the weights of its module."""
    tensors = needs.package("safetensors.numpy").load_file(folder / "policy" / "adapter_model.safetensors")
    own = json.loads((folder / "policy" / "adapter_config.json").read_text())
    assert tensors[NAME.format("A")].shape[0] == own["r"]
    return own["lora_alpha"] / own["r"] * tensors[NAME.format("B")] @ tensors[NAME.format("A")]


def test_two_adapters_at_right_angles_keep_their_length(tmp_path):
    needs.package("torch")
    from steadyrl.backends.torch.save.joined import join_adapters

    # Differences 2 * [[1, 0], [0, 0]] and [[0, 0], [0, 3]]: each gets sin 45 / sin 90.
    one = write_adapter(tmp_path / "one", [[1.0, 0.0]], [[1.0], [0.0]], lora_alpha=2.0)
    two = write_adapter(tmp_path / "two", [[0.0, 1.0], [0.0, 0.0]], [[0.0, 5.0], [3.0, 5.0]])
    assert join_adapters([one, two], tmp_path / "joined") == 3
    root = math.sqrt(0.5)
    np.testing.assert_allclose(difference(tmp_path / "joined"), [[2 * root, 0], [0, 3 * root]], atol=1e-6)


def test_an_adapter_joined_with_one_of_its_direction_is_their_mean(tmp_path):
    needs.package("torch")
    from steadyrl.backends.torch.save.joined import join_adapters

    one = write_adapter(tmp_path / "one", [[1.0, 2.0]], [[1.0], [0.0]])
    two = write_adapter(tmp_path / "two", [[1.0, 2.0]], [[3.0], [0.0]])
    zero = write_adapter(tmp_path / "zero", [[1.0, 2.0]], [[0.0], [0.0]])
    join_adapters([one, two], tmp_path / "joined")
    np.testing.assert_allclose(difference(tmp_path / "joined"), [[2, 4], [0, 0]], atol=1e-6)
    join_adapters([one, two, zero], tmp_path / "thirds")
    np.testing.assert_allclose(difference(tmp_path / "thirds"), [[4 / 3, 8 / 3], [0, 0]], atol=1e-6)


def test_the_third_of_three_vectors_at_right_angles_is_joined_at_a_third_of_the_arc():
    needs.package("torch")
    from steadyrl.backends.torch.save.joined import spherical

    first = math.sqrt(0.5) * math.sin(math.pi / 3)
    np.testing.assert_allclose(spherical(np.eye(3)), [first, first, math.sin(math.pi / 6)], atol=1e-12)
    # At 60 degrees: sin 30 / sin 60 each, and the length stays 1.
    shares = spherical(np.array([[1, 0.5], [0.5, 1]]))
    np.testing.assert_allclose(shares, [1 / math.sqrt(3)] * 2, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"rank_pattern": {"layer": 2}}, "more than one rank"), ({"use_rslora": True}, "more than one rank")],
)
def test_an_adapter_of_several_ranks_is_refused(tmp_path, changes, reason):
    needs.package("torch")
    from steadyrl.backends.torch.save.joined import join_adapters

    one = write_adapter(tmp_path / "one", [[1.0, 2.0]], [[1.0], [0.0]])
    two = write_adapter(tmp_path / "two", [[1.0, 2.0]], [[3.0], [0.0]], **changes)
    with pytest.raises(ModelError, match=reason):
        join_adapters([one, two], tmp_path / "joined")
    wide = write_adapter(tmp_path / "wide", [[1.0, 2.0, 0.0]], [[3.0], [0.0]])
    with pytest.raises(ModelError, match="holds other weights than"):
        join_adapters([one, wide], tmp_path / "joined")


def logprobs(model, vocabulary=20):
    """Return the log-probs of a few tokens of a model."""
    torch = needs.package("torch")
    ids = torch.arange(12)[None] * 7 % vocabulary
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits[0], -1).numpy()


# peft reads a property that transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_joined_adapters_load_in_peft_and_merged_in_transformers_as_one_policy(trained, tiny_models, tmp_path):
    transformers, peft = needs.package("transformers"), needs.package("peft")
    runs = [trained("llama", *LORA, f"run.seed={seed}", f"model.lora_alpha={8 * seed}") for seed in (1, 2)]
    export_joined(runs, tmp_path / "adapter", "last")
    export_joined(runs, tmp_path / "merged", "last", merge=True)
    adapted = logprobs(peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval().double())
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    np.testing.assert_allclose(adapted, logprobs(merged.double()), atol=NATS)
    start = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["llama"]).eval()
    assert np.abs(adapted - logprobs(start)).max() > 1e-3
    # One module by hand: the differences as whole matrices, and the angle between them.
    weight = "model.layers.1.mlp.up_proj.weight"
    held = needs.package("safetensors.torch").load_file
    found = []
    for run in runs:
        policy = run.checkpoint_folder(3) / "policy"
        tensors, own = (
            held(policy / "adapter_model.safetensors"),
            json.loads((policy / "adapter_config.json").read_text()),
        )
        name = f"base_model.model.{weight}".replace("weight", "lora_{}.weight")
        found.append((own["lora_alpha"] / own["r"] * tensors[name.format("B")] @ tensors[name.format("A")]).double())
    cosine = (found[0] * found[1]).sum() / found[0].norm() / found[1].norm()
    expected = start.state_dict()[weight].double() + sum(found) / (2 * math.cos(math.acos(cosine) / 2))
    np.testing.assert_allclose(merged.state_dict()[weight], expected, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "merged"]
    assert json.loads((tmp_path / "adapter" / "export.json").read_text())["lora_rank"] == 8


def test_joined_whole_weights_are_the_mean(trained, tmp_path):
    transformers = needs.package("transformers")
    runs = [trained("qwen2", f"run.seed={seed}") for seed in (1, 2, 3)]
    export_joined(runs, tmp_path / "model", "last")
    joined = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    loaded = [transformers.AutoModelForCausalLM.from_pretrained(run.checkpoint_folder(3) / "policy") for run in runs]
    each = [model.state_dict() for model in loaded]
    for name, mean in joined.items():
        np.testing.assert_allclose(mean, sum(own[name].double() for own in each) / 3, atol=1e-6)
    assert not np.array_equal(joined["lm_head.weight"], each[0]["lm_head.weight"])


def test_the_card_and_the_commands_name_every_run(trained, tmp_path):
    runs = [trained("llama", *LORA, f"run.seed={seed}", f"model.lora_alpha={8 * seed}") for seed in (1, 2)]
    export_joined(runs, tmp_path / "adapter", "last")
    card, lines = (tmp_path / "adapter" / "README.md").read_text(), serve_lines(runs[0], tmp_path / "adapter")
    assert "holds a LoRA adapter of rank 8" in card and "was not evaluated" in card
    for run in runs:
        after = [record["answers"]["greedy"]["reward"] for record in run.evaluations()["after"]]
        (row,) = [line for line in card.splitlines() if line.startswith(f"| {run.path.name} ") and "greedy" in line]
        assert float(row.split("|")[9]) == pytest.approx(np.mean(after), abs=1e-3)
        assert f"step 3 of {run.path.name}" in lines[0]
        assert str(run.path) in next(line for line in lines if "--merge" in line)
    assert str(tmp_path) not in card, "a card travels"


def changed(run, to, *overrides):
    """Return a copy of a run whose settings differ."""
    shutil.copytree(run.path, to)
    write_json(to / "resolved.json", dump(resolve(run.resolved(), overrides)))
    return RunDir(to)


def test_runs_that_cannot_be_joined_are_refused_and_leave_nothing(trained, tiny_models, tmp_path):
    lora = [trained("llama", *LORA, f"run.seed={seed}", f"model.lora_alpha={8 * seed}") for seed in (1, 2)]
    other = changed(lora[1], tmp_path / "other", f"model.path={tiny_models['qwen3']}")
    asked = changed(lora[1], tmp_path / "asked", "model.chat_template=never")
    tokens = changed(lora[1], tmp_path / "tokens")
    for file in tokens.path.glob("checkpoints/*/policy/tokenizer.json"):
        file.write_text(file.read_text() + " ")
    refused = [
        ([lora[0], trained("llama")], None, ConfigError, r"model.lora_rank is 'above 0' in one and 0 in the other"),
        ([lora[0], other], None, ConfigError, r"cannot be joined: model.path is '.*llama' in one and '.*qwen3'"),
        ([lora[0], asked], None, ConfigError, r"model.chat_template is 'auto' in one and 'never'"),
        ([lora[0], tokens], None, ConfigError, r"is another tokenizer than"),
        ([lora[0], lora[0]], None, RunError, r"is given 2 times; give each run once"),
        (lora, "9", RunError, r"has no checkpoint after step 9; it has 1, 2, 3"),
    ]
    for runs, wanted, kind, reason in refused:
        with pytest.raises(kind, match=reason):
            export_joined(runs, tmp_path / "model", wanted)
    assert not list(tmp_path.glob("model*"))
