"""Settings by their names, and the settings of a model that nobody chose."""

import pytest

from steadyrl.backends.huggingface.facts import ModelFacts, model_facts
from steadyrl.core.errors import ConfigError
from steadyrl.core.sections import ModelSection
from steadyrl.loop.defaults import answer_tokens, defaults
from steadyrl.python.inputs import nested

NAMES = {"algorithm": "grpo", "task": "prompts", "backend": "torch"}


@pytest.mark.parametrize(
    ("keywords", "settings"),
    [
        ({"learning_rate": 1e-4}, {"update": {"learning_rate": 1e-4}}),
        ({"steps": 3, "seed": 1}, {"run": {"steps": 3, "seed": 1}}),
        ({"epochs": 2}, {"run": {"epochs": 2}}),
        ({"temperature": 0.7, "top_p": 0.9}, {"sampling": {"temperature": 0.7, "top_p": 0.9}}),
        ({"algorithm": "ppo", "value_coef": 0.5}, {"algorithm": {"name": "ppo", "args": {"value_coef": 0.5}}}),
        ({"kl_coef": 0.1}, {"algorithm": {"args": {"kl_coef": 0.1}}}),
        ({"prompt_column": "q"}, {"task": {"args": {"prompt_column": "q"}}}),
        ({"sampler": "vllm"}, {"sampler": {"engine": "vllm"}}),
        ({"evaluate": {"every": 5}, "patience": 2}, {"evaluate": {"every": 5, "patience": 2}}),
        ({"steps": None}, {}),
    ],
)
def test_a_keyword_is_the_setting_of_that_name(keywords, settings):
    assert nested(keywords, NAMES) == settings


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"stps": 1, "lora_rnk": 2}, "called stps; did you mean 'steps'?; no setting is called lora_rnk; did you mean"),
        ({"learning_rat": 1}, "no setting is called learning_rat; did you mean 'learning_rate'?"),
        ({"beta": 1}, "no setting is called beta; it is algorithm.args.kl_coef here"),
        ({"load_in_4bit": True}, "load_in_4bit; it is backend.args.quantize = 'nf4' with model.lora_rank here"),
        ({"train_dataset": []}, "it is task.args.path, or the argument prompts of train, here"),
        ({"value_coef": 1}, "no setting is called value_coef; "),
        ({"args": {}}, "args may be backend.args or task.args"),
        ({"run": 3}, "run: got 3; expected a dict of its settings"),
        ({"algorithm": "gpro"}, "did you mean 'grpo'?"),
    ],
)
def test_what_names_no_setting_or_several_is_refused(keywords, message):
    with pytest.raises(ConfigError) as error:
        nested(keywords, NAMES)
    assert message in str(error.value)


def facts(parameters=2_000_000, context=1024, chats=False, longest_answer=0):
    return ModelFacts(parameters, context, chats, longest_answer)


@pytest.mark.parametrize(
    ("parameters", "chosen", "rate", "rank"),
    [
        (1_800_000, {}, 4e-4, None),
        (135_000_000, {}, 3e-4, 16),
        (500_000_000, {}, 1e-4, 16),
        (7_000_000_000, {}, 5e-5, 16),
        (135_000_000, {"model": {"lora_rank": 0}}, 3e-5, None),
        (1_800_000, {"model": {"lora_rank": 8}}, 3e-4, 16),
    ],
)
def test_the_rate_and_the_adapter_go_by_the_models_size(parameters, chosen, rate, rank):
    settings = defaults(chosen, facts(parameters), 40, 10)
    assert settings["update"]["learning_rate"] == rate
    assert settings.get("model", {}).get("lora_rank") == rank


def test_a_step_takes_no_more_prompts_than_there_are_and_many_do_not_judge():
    few, many = defaults({}, None, 5, 2), defaults({}, None, 5000, 1000)
    assert few["rollout"] == {"prompts_per_step": 5, "samples_per_prompt": 8} and "evaluate" not in few
    assert many["rollout"]["prompts_per_step"] == 16 and many["evaluate"] == {"problems": 100}


def test_the_warm_up_ends_before_the_run_and_a_wrong_number_of_steps_is_no_error_of_its_own():
    runs = [{"steps": steps} for steps in (1, 2, 3, 4, 9, -1, "x")]
    warmups = [defaults({"run": run}, None, 5, 2)["update"]["warmup_steps"] for run in runs]
    assert warmups == [0, 1, 2, 3, 3, 3, 3]


def test_another_algorithm_keeps_its_own_settings():
    assert defaults({}, None, 5, 2)["algorithm"]["args"] == {"kl_coef": 0.0, "scale": "batch"}
    assert "args" not in defaults({"algorithm": {"name": "ppo"}}, None, 5, 2)["algorithm"]


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        (facts(), 64),
        (facts(longest_answer=5), 16),
        (facts(longest_answer=30), 60),
        (facts(chats=True, longest_answer=5), 256),
        (facts(chats=True, longest_answer=300), 512),
        (facts(chats=True, longest_answer=300, context=None), 600),
    ],
)
def test_answers_are_twice_as_long_as_the_longest_good_one_within_half_the_positions(model, tokens):
    assert answer_tokens(model) == tokens


def test_the_facts_of_models_are_read_from_their_files(tiny_models):
    import torch
    import transformers

    for name in ("llama", "gpt2"):
        model = transformers.AutoModelForCausalLM.from_pretrained(tiny_models[name], dtype=torch.float32)
        read = model_facts(ModelSection(path=str(tiny_models[name])), ["red", "the red cat sees"])
        assert read.parameters == sum(p.numel() for p in model.parameters())
        assert read.chats == (name == "llama") and read.longest_answer >= 4
