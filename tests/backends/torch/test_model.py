"""Loading models and tokenizers: what is accepted, what is refused, and how a prompt becomes ids."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from steadyrl.core.errors import ConfigError, ModelError
from steadyrl.core.sections import ModelSection
from tests import needs

torch = needs.package("torch")
transformers = needs.package("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from steadyrl.backends.huggingface.folder import context_length  # noqa: E402
from steadyrl.backends.torch.load.model import class_of, load_model, split_head  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


def loaded(folder, **settings):
    return load_model(ModelSection(path=str(folder), **settings), torch.device("cpu"))


@pytest.fixture(scope="module")
def tokenizers(tiny_models):
    return {name: loaded(folder)[1] for name, folder in tiny_models.items()}


@pytest.fixture
def copied(tiny_models, tmp_path):
    """A copy of a model folder to spoil."""
    return shutil.copytree(tiny_models["llama"], tmp_path / "model")


def test_a_chat_template_makes_the_prompt_a_message(tokenizers):
    ids = tokenizers["llama"].encode_prompt("the cat")
    assert tokenizers["llama"].hf.decode(ids) == "<user>the cat<eos><bot>"
    assert ids.dtype == np.int32


def test_the_chat_template_can_be_left_out(tiny_models):
    _, tokenizer = loaded(tiny_models["llama"], chat_template="never")
    assert tokenizer.hf.decode(tokenizer.encode_prompt("the cat")) == "the cat"


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gpt2"])
def test_without_a_chat_template_the_prompt_is_the_text(tokenizers, family):
    assert tokenizers[family].hf.decode(tokenizers[family].encode_prompt("the cat")) == "the cat"


def test_decoded_text_has_no_special_tokens(tokenizers):
    assert tokenizers["llama"].decode(tokenizers["llama"].encode_prompt("the cat")) == "the cat"


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_an_answer_ends_with_the_end_token_and_decodes_to_itself(tokenizers, family):
    tokenizer = tokenizers[family]
    ids = tokenizer.encode_answer("the cat", "the")
    assert ids[-1] == tokenizer.end_id != ids[-2]
    assert tokenizer.decode(ids).strip() == "the cat"


def test_every_end_that_the_folder_states_ends_a_completion(copied):
    """The generation config names two; the template closes a turn by a third, which demonstrations end with."""
    settings = json.loads((copied / "generation_config.json").read_text())
    (copied / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [1, 9]}))
    (copied / "chat_template.jinja").write_text(
        "{% for m in messages %}<user>{{ m['content'] }}{% if m['role'] == 'assistant' %}\n<bot>\n{% endif %}"
        "{% endfor %}"
    )
    _, tokenizer = loaded(copied)
    assert sorted(tokenizer.end_ids) == [1, 3, 9]
    assert (tokenizer.end_id, tokenizer.encode_answer("the cat", "the")[-1]) == (3, 3)
    assert tokenizer.encode_turn("the dog", ended=True)[0] != 3 == tokenizer.encode_turn("the dog", ended=False)[0]
    _, plain = loaded(copied, chat_template="never")
    assert sorted(plain.end_ids) == [1, 9]
    assert plain.end_id == 1


def test_a_template_that_closes_no_turn_leaves_the_end_to_the_tokenizer(copied):
    (copied / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    _, tokenizer = loaded(copied)
    assert tokenizer.end_ids == (tokenizer.end_id,) == (1,)


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('Only text is known') }}", "{% for m in %}", "{{ messages[7]['content'] }}", "{{ 'a' + 1 }}"],
)
def test_a_chat_template_that_fails_is_refused_in_one_line(copied, template):
    (copied / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=r"chat template fails.*model\.chat_template = 'never'"):
        loaded(copied)
    assert loaded(copied, chat_template="never")[1].encode_prompt("the cat").size


def test_a_template_for_questions_only_serves_no_second_turn(copied):
    (copied / "chat_template.jinja").write_text("<user>{{ messages[-1]['content'] }}<bot>")
    _, tokenizer = loaded(copied)
    assert tokenizer.hf.decode(tokenizer.encode_prompt("the cat")) == "<user>the cat<bot>"
    with pytest.raises(ModelError, match="leaves out what the assistant said"):
        tokenizer.encode_turn("the dog", ended=True)


def test_between_two_turns_stands_what_the_chat_template_writes_there(tokenizers):
    tokenizer = tokenizers["llama"]
    for ended, expected in ((True, "<user>the dog<eos><bot>"), (False, "<eos><user>the dog<eos><bot>")):
        assert tokenizer.hf.decode(tokenizer.encode_turn("the dog", ended)) == expected


def test_without_a_chat_template_the_next_observation_is_a_paragraph(tokenizers):
    tokenizer = tokenizers["qwen2"]
    ended, cut = tokenizer.encode_turn("the dog", True), tokenizer.encode_turn("the dog", False)
    assert tokenizer.hf.decode(ended).strip() == "the dog"
    assert cut.tolist() == [tokenizer.end_id, *ended.tolist()]


def test_an_end_token_after_the_prompt_is_dropped(tokenizers):
    tokenizer = tokenizers["gpt2"]
    whole = tokenizer.hf("the cat")["input_ids"]
    assert whole[-1] == tokenizer.end_id
    assert tokenizer.encode_prompt("the cat").tolist() == whole[:-1]


def test_an_empty_prompt_is_the_end_token(tokenizers):
    assert tokenizers["gpt2"].encode_prompt("").tolist() == [tokenizers["gpt2"].end_id]


def test_without_a_pad_token_the_end_token_pads(tokenizers):
    assert tokenizers["qwen2"].hf.pad_token is None
    assert tokenizers["qwen2"].pad_id == tokenizers["qwen2"].end_id
    assert tokenizers["llama"].pad_id != tokenizers["llama"].end_id


def test_models_are_loaded_for_scoring_without_dropout(tiny_models):
    for folder in tiny_models.values():
        model, _ = loaded(folder)
        assert not model.training
        assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_an_adapter_leaves_the_weights_frozen(tiny_models):
    model, _ = loaded(tiny_models["llama"], lora_rank=2, lora_targets="q_proj, v_proj")
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * 2  # layers, modules, matrices
    assert all(("q_proj" in name or "v_proj" in name) and "lora_" in name for name in trained)


def test_an_adapter_for_modules_that_do_not_exist_is_refused(tiny_models):
    with pytest.raises(ConfigError, match=r"lora_targets = 'nowhere': .* or some of down_proj, gate_proj, k_proj"):
        loaded(tiny_models["llama"], lora_rank=2, lora_targets="nowhere")


@pytest.mark.parametrize(("targets", "unknown"), [("q_proj,nosuch", "nosuch"), ("q_proj,,v_proj", "")])
def test_a_target_that_does_not_exist_is_refused_beside_one_that_does(tiny_models, targets, unknown):
    with pytest.raises(ConfigError, match=f"no module '{unknown}'; expected 'all-linear', or some of down_proj, .*q_"):
        loaded(tiny_models["llama"], lora_rank=2, lora_targets=targets)


@pytest.mark.parametrize(
    ("family", "targets", "refused"),
    [
        ("llama", "q_proj,embed_tokens", "model.embed_tokens"),
        ("llama", "lm_head", "lm_head"),
        ("gpt2", "lm_head", "lm_head"),
        ("gpt2", "wpe", "transformer.wpe"),
        ("qwen2", "embed_tokens", "model.embed_tokens"),
    ],
)
def test_an_adapter_on_an_embedding_or_a_head_that_is_one_is_refused(tiny_models, family, targets, refused):
    """Merged into weights that two layers share, it would change both, and training changed one."""
    with pytest.raises(ConfigError, match=f"lora_targets = '{targets}': '{refused}' is an embedding or shares"):
        loaded(tiny_models[family], lora_rank=2, lora_targets=targets)


def test_an_adapter_on_a_head_with_weights_of_its_own_is_trained(tiny_models):
    model, _ = loaded(tiny_models["qwen2"], lora_rank=2, lora_targets="lm_head")
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 2 and all("lm_head.lora_" in name for name in trained)


def a_gemma(cap):
    settings = transformers.Gemma2Config(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, initializer_range=0.4, final_logit_softcapping=cap, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(settings).eval()


def test_a_cap_on_the_logits_is_part_of_the_head():
    model, ids = a_gemma(cap=2.0), torch.arange(7)[None]
    parts = split_head(model)
    with torch.no_grad():
        hidden = parts.body(input_ids=ids).last_hidden_state
        assert model.lm_head(hidden).abs().max() > 3, "the cap has to show"
        torch.testing.assert_close(parts.head(hidden), model(input_ids=ids).logits)
    assert (parts.head.in_features, parts.head.out_features) == (32, 50)


def test_a_model_that_changes_its_logits_otherwise_is_refused():
    model = a_gemma(cap=2.0)
    model.config.final_logit_softcapping = None  # its forward reads it when it is called
    forward = model.forward
    model.forward = lambda **more: SimpleNamespace(logits=forward(**more).logits ** 2)
    with pytest.raises(ModelError, match="'gemma2' changes its logits after the output layer, and not by a constant"):
        split_head(model)


def test_a_model_whose_tokens_see_later_ones_is_refused():
    """Sampled token by token it would draw from another distribution than the one that it is scored by."""
    settings = transformers.BertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.4,
    )  # fmt: skip
    with pytest.raises(ModelError, match="the model type 'bert' lets tokens see later ones, as encoders do"):
        split_head(transformers.BertLMHeadModel(settings).eval())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("LlamaConfig", "AutoModelForCausalLM"),
        ("Gemma3Config", "AutoModelForCausalLM"),
        ("Mistral3Config", "AutoModelForImageTextToText"),
        ("MllamaConfig", "AutoModelForImageTextToText"),  # its text part alone, once saved, transformers does not know
        ("ViTConfig", "AutoModelForCausalLM"),  # which refuses it
    ],
)
def test_a_model_of_images_is_loaded_whole_where_its_text_part_is_none_by_itself(settings, expected):
    assert class_of(getattr(transformers, settings)()) is getattr(transformers, expected)


def test_a_tokenizer_without_end_token_is_refused(copied):
    (copied / "chat_template.jinja").unlink()
    lacking = {"tokenizer_config.json": "eos_token", "generation_config.json": "eos_token_id"}
    for name, key in {**lacking, "config.json": "eos_token_id"}.items():
        settings = json.loads((copied / name).read_text())
        (copied / name).write_text(json.dumps(settings | {key: None}))
    with pytest.raises(ModelError, match="end-of-sequence"):
        loaded(copied)


def test_a_missing_model_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="there is no model folder"):
        loaded(tmp_path / "nowhere")


def edited(name, **changes):
    """A function that changes keys of a JSON file in a folder."""

    def spoil(folder):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | changes))

    return spoil


def spoilt_merges(folder):
    """Let words go on with a mark that none of them has: the library panics, which is no Exception."""
    stated = json.loads((folder / "tokenizer.json").read_text())
    model = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": [["a", "b"]],
        "continuing_subword_prefix": "#" * 9,
    }
    (folder / "tokenizer.json").write_text(json.dumps(stated | {"model": model}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json' holds a list; expected a JSON object"),
        (lambda folder: (folder / "tokenizer.json").write_text("7"), "tokenizer.json' holds a int; expected"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("[]"), "tokenizer_config.json' holds a list"),
        (lambda folder: (folder / "generation_config.json").write_text("{"), "generation_config.json' is not valid"),
        (edited("config.json", hidden_size="many"), "cannot be loaded: .*hidden_size.*many"),
        (edited("config.json", num_hidden_layers=-3), "has num_hidden_layers = -3; expected a whole number above 0"),
        (edited("config.json", num_attention_heads=0), "cannot be loaded|has num_attention_heads = 0"),
        (edited("config.json", num_key_value_heads=3), "num_key_value_heads = 3 among num_attention_heads = 4"),
        (edited("config.json", rope_parameters={"rope_type": "nowhere"}), "cannot be loaded"),
        (edited("config.json", hidden_act="nothing"), "cannot be loaded"),
        (edited("tokenizer.json", version=3), "cannot be loaded: invalid type: integer `3`"),
        (spoilt_merges, "cannot be loaded: tokenizers stops at it .*is tokenizer.json as it was published"),
        (edited("tokenizer_config.json", model_max_length=[1]), "cannot be loaded: '>' not supported"),
    ],
)
def test_a_damaged_model_folder_is_refused_in_one_line(copied, spoil, message):
    spoil(copied)
    with pytest.raises(ModelError, match=message) as refused:
        loaded(copied)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_a_tokenizer_with_more_words_than_the_model_is_refused(copied):
    model, _ = loaded(copied)
    model.resize_token_embeddings(20)
    model.save_pretrained(copied)
    with pytest.raises(ModelError, match="knows words with ids up to 59, and the model's embedding has 20 rows"):
        loaded(copied)


def test_a_tokenizer_that_lost_words_is_told(copied, caplog):
    """The letters that only they could write are left out of prompts, and nothing else says so."""
    loaded(copied)
    assert "is its tokenizer.json whole" not in caplog.text.lower()
    file = copied / "tokenizer.json"
    told = json.loads(file.read_text())
    kept = {word: id for word, id in told["model"]["vocab"].items() if id % 2}
    merges = [pair for pair in told["model"]["merges"] if {*pair, "".join(pair)} <= kept.keys()]
    file.write_text(json.dumps(told | {"model": told["model"] | {"vocab": kept, "merges": merges}}))
    loaded(copied)
    assert "words, and the model's embedding has 60 rows" in caplog.text


def test_a_tokenizer_to_which_the_models_end_is_a_word_is_refused(copied):
    """Every completion would end at that word, and none where the model ends it."""
    settings = json.loads((copied / "generation_config.json").read_text())
    (copied / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": 9}))
    with pytest.raises(ModelError, match=r"end with the token 9, which is the ordinary word '.+' of the tokenizer"):
        loaded(copied)


def test_a_special_token_without_a_row_is_refused_where_a_text_holds_it_and_not_before(copied):
    """Gemma 3's tokenizer has one, for pictures, past the embedding of its text models."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(copied)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<picture>"]})
    tokenizer.save_pretrained(copied)
    _, tokenizer = loaded(copied)
    assert tokenizer.encode_prompt("the cat").size
    with pytest.raises(ModelError, match=r"holds the token '<picture>' \(id 60\)"):
        tokenizer.encode_prompt("the <picture>")


def bring_code(folder, model_type):
    """Let a folder bring Python code of its own that leaves a file behind when it is run."""
    (folder / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import LlamaConfig\n"
        f"Path({str(folder / 'ran')!r}).touch()\nclass Own(LlamaConfig):\n    model_type = 'own'\n"
    )
    edited("config.json", auto_map={"AutoConfig": "own.Own"}, model_type=model_type)(folder)


@pytest.fixture
def module_cache(tmp_path, monkeypatch):
    """Code that is run is copied first; not into the cache of whoever runs the tests."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


def test_code_of_a_model_folder_is_not_run(copied, monkeypatch, module_cache):
    bring_code(copied, "own")
    monkeypatch.setattr("builtins.input", lambda *asked: pytest.fail("asked whether to run code"))
    with pytest.raises(ModelError, match=r"needs Python code that the folder brings.*model\.trust_remote_code = true"):
        loaded(copied)
    assert not (copied / "ran").exists()


def test_a_folder_with_code_of_a_known_type_is_read_by_transformers_own_class(copied, caplog, module_cache):
    bring_code(copied, "llama")
    model, _ = loaded(copied)
    assert type(model) is transformers.LlamaForCausalLM
    assert "brings its own Python code (auto_map); it is not run" in caplog.text
    assert not (copied / "ran").exists()


def test_code_of_a_model_folder_is_run_where_the_setting_says_so(copied, caplog, module_cache):
    bring_code(copied, "own")
    with pytest.raises(ModelError, match="cannot be loaded"):  # a configuration alone makes no model
        loaded(copied, trust_remote_code=True)
    assert (copied / "ran").exists()


def test_quantised_weights_are_refused_for_full_training(copied):
    edited("config.json", quantization_config={"quant_method": "gptq", "bits": 4})(copied)
    with pytest.raises(ModelError, match=r"quantised weights, which cannot be trained; set model\.lora_rank = 16"):
        loaded(copied)


ROPES = {
    "none": (None, 100),
    "default": ({"rope_type": "default", "rope_theta": 1e4}, 100),
    "linear": ({"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, 400),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 200),
    "yarn": (
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 100},
        800,
    ),
    "llama3": (
        {
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        100,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
def test_the_context_reaches_as_far_as_the_rotations_do(name):
    rope, expected = ROPES[name]
    config = transformers.LlamaConfig(max_position_embeddings=100, rope_parameters=rope)
    assert context_length(config) == expected


def test_a_model_without_positions_has_no_longest_context():
    assert context_length(transformers.BloomConfig()) is None
    assert context_length(transformers.GPT2Config(n_positions=77)) == 77


def lose_a_weight(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def shrink_a_weight(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:5].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def judge_instead(folder):  # with tied weights every weight of a policy is there
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
        (lose_a_weight, r"lacks weights: model\.layers\.1\.mlp\.up_proj\.weight"),
        (shrink_a_weight, "cannot be loaded"),
        (judge_instead, "is a LlamaForSequenceClassification; expected a causal language model"),
    ],
    ids=[
        "no config", "torn config", "no tokenizer", "no weights", "a weight missing",
        "a weight too small", "a reward model",
    ],
)  # fmt: skip
def test_an_incomplete_model_folder_is_refused(copied, spoil, message):
    spoil(copied)
    with pytest.raises(ModelError, match=message):
        loaded(copied)
