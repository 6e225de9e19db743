"""How conversations, messages before every prompt and arguments of the chat template become ids."""

import json
import shutil
from types import SimpleNamespace

import pytest

from steadyrl.backends.toy import CharTokenizer
from steadyrl.core import config
from steadyrl.core.errors import ConfigError, DataError, ModelError
from steadyrl.core.protocols import PromptLimit
from steadyrl.core.sections import ModelSection
from steadyrl.core.types import Problem, Sampling, plain_text
from steadyrl.loop.rollout.prompts import fit_prompts
from tests import needs

torch = needs.package("torch")
transformers = needs.package("transformers")

from tokenizers.processors import TemplateProcessing  # noqa: E402

from steadyrl.backends.huggingface.tokenizer import HFTokenizer  # noqa: E402
from steadyrl.backends.torch.load.model import load_model  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}<pad>{% elif m.role == 'user' %}<user>{% else %}<bot>{% endif %}"
    "{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}{% if thinking %}three{% endif %}"
)
SYSTEM = {"role": "system", "content": "a cat"}
EXAMPLE = [{"role": "user", "content": "red"}, {"role": "assistant", "content": "blue"}]
DOG = {"role": "user", "content": "the dog"}


@pytest.fixture
def opened(tiny_models):
    """Return a function that makes a tokenizer from settings of the section [model]."""

    def make(family="llama", template=TEMPLATE, **settings):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_models[family])
        if family == "llama":
            tokenizer.chat_template = template
        return HFTokenizer(tokenizer, config.validate(ModelSection, settings, "model"))

    return make


def text(tokenizer, prompt):
    return tokenizer.hf.decode(tokenizer.encode_prompt(prompt))


def test_a_conversation_goes_through_the_chat_template(opened):
    assert text(opened(), (SYSTEM, *EXAMPLE, DOG)) == (
        "<pad>a cat<eos><user>red<eos><bot>blue<eos><user>the dog<eos><bot>"
    )


def test_a_system_message_and_examples_stand_before_every_prompt(opened):
    tokenizer = opened(messages_before=[SYSTEM, *EXAMPLE])
    whole = "<pad>a cat<eos><user>red<eos><bot>blue<eos><user>the dog<eos><bot>"
    assert [text(tokenizer, prompt) for prompt in ("the dog", (DOG,))] == [whole, whole]


def test_a_system_message_of_the_data_takes_the_place_of_the_one_in_the_config(opened):
    tokenizer = opened(messages_before=[SYSTEM, *EXAMPLE])
    own = {"role": "system", "content": "old"}
    assert text(tokenizer, (own, DOG)) == "<pad>old<eos><user>red<eos><bot>blue<eos><user>the dog<eos><bot>"


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_without_a_chat_template_a_conversation_is_text(opened, family):
    tokenizer = opened(family, chat_template="never", messages_before=[SYSTEM, *EXAMPLE])
    whole = "a cat\n\nred blue\n\nthe dog"
    assert tokenizer.encode_prompt("the dog").tolist() == tokenizer.hf(whole)["input_ids"]
    assert tokenizer.encode_prompt((DOG,)).tolist() == tokenizer.hf(whole)["input_ids"]


def test_the_toy_reads_a_conversation_as_text_too():
    assert CharTokenizer().decode(CharTokenizer().encode_prompt((SYSTEM, *EXAMPLE, DOG))) == (
        "a cat\n\nred blue\n\nthe dog"
    )


def test_a_prompt_that_asks_for_its_answer_after_a_line_end_gets_no_space():
    assert plain_text([{"role": "user", "content": "red\n"}, EXAMPLE[1], DOG]) == "red\nblue\n\nthe dog"


def test_arguments_reach_the_chat_template(opened):
    assert text(opened(template_args={"thinking": True}), "the dog") == "<user>the dog<eos><bot>three"
    assert text(opened(template_args={"thinking": False}), "the dog") == "<user>the dog<eos><bot>"


def test_a_template_that_refuses_the_messages_is_reported_before_anything_is_paid(opened):
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
    with pytest.raises(ModelError, match=r"chat template fails on the roles system, user, assistant, user: no system"):
        opened(template=refusing, messages_before=[SYSTEM, *EXAMPLE])

    class Backend:
        tokenizer = opened(template=refusing)

        def describe(self):
            return {"context": 100}

    problems = [Problem("a", "text"), Problem("b", "text", {}, (SYSTEM, DOG))]
    with pytest.raises(ModelError, match=r"chat template fails on the roles system, user: no system"):
        fit_prompts(problems, Backend(), Sampling(max_new_tokens=4), PromptLimit())
    with pytest.raises(DataError, match=r"1 of 1 prompts take more than task.args.prompt_tokens = 5"):
        fit_prompts([Problem("c", "", {}, (DOG, *EXAMPLE, DOG))], Backend(), Sampling(4), PromptLimit(5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"messages_before": [DOG]}, "the roles are user"),
        ({"messages_before": [*EXAMPLE, SYSTEM]}, "the roles are user, assistant, system"),
        ({"messages_before": [{"role": "robot", "content": "x"}]}, "'system', 'user' or 'assistant'"),
        ({"messages_before": [{"role": "user"}]}, "messages_before.0.content: is missing"),
        ({"template_args": {"thinking": [1]}}, "model.template_args.thinking"),
    ],
)
def test_messages_and_arguments_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        config.validate(ModelSection, settings, "model")
    assert message in str(caught.value)


def test_a_config_file_holds_messages_and_arguments(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(
        "[model]\ntemplate_args = { enable_thinking = false }\n"
        'messages_before = [\n  { role = "system", content = "x" },\n]\n[rewards]\nretrieval = 1.0\n'
    )
    settings = config.load(path)
    assert config.resolve(config.dump(settings)) == settings
    assert settings.model.messages_before[0].content == "x"


@pytest.mark.parametrize(
    "template",
    [
        "{# nothing #}",
        " \n ",
        "<user><eos><bot>",
        "{% for m in messages %}{{ m.text }}<eos>{% endfor %}",
        "{% if not add_generation_prompt %}{{ messages[0].content }}{% endif %}",
    ],
)
def test_a_template_that_leaves_the_question_out_is_refused(opened, template):
    with pytest.raises(ModelError, match="leaves out what message 1 of the roles user says"):
        opened(template=template)


def test_a_template_that_drops_system_messages_is_refused_for_prompts_that_have_one(opened):
    dropping = "{% for m in messages if m.role != 'system' %}" + TEMPLATE.partition("%}")[2]
    assert text(opened(template=dropping), "the dog") == "<user>the dog<eos><bot>"
    with pytest.raises(ModelError, match="leaves out what message 1 of the roles system, user says"):
        opened(template=dropping, messages_before=[SYSTEM])


FORGETFUL = TEMPLATE.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1].strip() }}")
THOUGHT = "<think>\nit is the sky\n</think>\n\nblue"


def test_a_template_that_drops_earlier_reasoning_is_refused_for_messages_that_hold_some(opened):
    assert text(opened(template=FORGETFUL), (*EXAMPLE, DOG)) == "<user>red<eos><bot>blue<eos><user>the dog<eos><bot>"
    thinking = [EXAMPLE[0], {"role": "assistant", "content": THOUGHT}]
    told = "what message 2 of the roles user, assistant, user says beside <think> and </think>, as many do"
    with pytest.raises(ModelError, match=told):
        opened(template=FORGETFUL, messages_before=thinking)
    with pytest.raises(ModelError, match=told):
        opened(template=FORGETFUL).encode_prompt((*thinking, DOG))
    # Kept, the reasoning may stand in other space; and a question may hold tags without being cut.
    loose = TEMPLATE.replace("{{ m.content }}", "{{ m.content.replace('\n', ' ') }}")
    assert "it is the s" in text(opened(template=loose), (*thinking, DOG))
    assert "<user>" in text(opened(template=TEMPLATE), ({"role": "user", "content": "<b> not </think>"},))


@pytest.mark.parametrize("tags", ["[THINK] [/THINK]", "<|begin|> <|end|>", "\u25c1think\u25b7 \u25c1/think\u25b7"])
def test_the_tags_of_reasoning_may_be_of_any_family(opened, tags):
    begin, end = tags.split()
    template = TEMPLATE.replace("{{ m.content }}", f"{{{{ m.content.split('{end}')[-1] }}}}")
    thinking = [EXAMPLE[0], {"role": "assistant", "content": f"{begin}so{end}blue"}, DOG]
    with pytest.raises(ModelError, match="leaves out what message 2"):
        opened(template=template).encode_prompt(thinking)


def test_reasoning_that_a_template_drops_is_refused_before_anything_runs(opened):
    """Only one problem of many holds some, and its prompt is short enough to need no encoding for its length."""
    backend = SimpleNamespace(tokenizer=opened(template=FORGETFUL), describe=lambda: {"context": 99})
    problems = [Problem(f"p{i}", "red", {}, (*EXAMPLE, DOG)) for i in range(3)]
    assert fit_prompts(problems, backend, Sampling(max_new_tokens=4), PromptLimit()).problems == problems
    thinking = ({**EXAMPLE[0]}, {"role": "assistant", "content": THOUGHT}, DOG)
    with pytest.raises(ModelError, match="beside <think> and </think>"):
        fit_prompts([*problems, Problem("q", "red", {}, thinking)], backend, Sampling(max_new_tokens=4), PromptLimit())


@pytest.mark.parametrize(
    "loop",
    [
        "{% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}",
        "{% for part in m.content %}{{ part['text'] + '' }}{% endfor %}",
    ],
    ids=["leaves texts out", "fails on texts"],
)
def test_a_template_of_messages_in_parts_is_given_parts(opened, loop):
    """As those of many models of images are: SmolVLM, LLaVA."""
    in_parts = TEMPLATE.replace("{{ m.content }}", loop)
    assert in_parts != TEMPLATE
    tokenizer, plain = opened(template=in_parts, messages_before=[SYSTEM]), opened(messages_before=[SYSTEM])
    for prompt in ("the dog", (*EXAMPLE, DOG)):
        assert text(tokenizer, prompt) == text(plain, prompt)
    assert tokenizer.end_ids == plain.end_ids
    assert (tokenizer.encode_turn("red", ended=True) == plain.encode_turn("red", ended=True)).all()


@pytest.mark.parametrize("own", [False, True])
def test_the_template_of_what_reads_texts_and_images_is_used(tiny_models, tmp_path, own):
    """chat_template.json, where LLaVA and SmolVLM have it alone; what serves them goes by it."""
    folder = shutil.copytree(tiny_models["llama"], tmp_path / "model")
    if not own:
        (folder / "chat_template.jinja").unlink()
    in_parts = TEMPLATE.replace("{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": in_parts}))
    tokenizer = load_model(ModelSection(path=str(folder)), torch.device("cpu"))[1]
    assert (
        text(tokenizer, (SYSTEM, *EXAMPLE, DOG)) == "<pad>a cat<eos><user>red<eos><bot>blue<eos><user>the dog<eos><bot>"
    )
    tokenizer.save(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == in_parts


def test_a_template_that_writes_the_date_is_told_unless_one_is_set(opened, caplog):
    """As Llama 3.2's does."""
    dated = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    opened(template=dated + "{{ date_string }}" + TEMPLATE)
    assert "can write today's date into prompts" in caplog.text and "template_args.date_string" in caplog.text
    caplog.clear()
    tokenizer = opened(template=dated + "{{ date_string }}" + TEMPLATE, template_args={"date_string": "new"})
    assert not caplog.text
    assert text(tokenizer, "the dog") == "new<user>the dog<eos><bot>"


def test_marks_that_are_no_tokens_and_arguments_without_a_place_are_told(opened, caplog):
    foreign = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    opened(template=foreign, template_args={"thinkin": True})
    assert "writes <|im_start|>, <|im_end|>, which is no token of its own" in caplog.text
    assert "does not know 'thinkin'" in caplog.text
    caplog.clear()
    opened(template_args={"thinking": True})
    assert not caplog.text


def test_a_tokenizer_without_words_is_refused_and_a_pad_beyond_the_rows_is_not_used(tiny_models):
    hf = transformers.AutoTokenizer.from_pretrained(tiny_models["llama"])
    hf.add_special_tokens({"pad_token": "<new>"})
    assert HFTokenizer(hf, ModelSection(), None, 60).pad_id == 1
    hf.get_vocab = lambda: {"<eos>": 1}
    with pytest.raises(ModelError, match="knows no words"):
        HFTokenizer(hf, ModelSection(), None, 60)


@pytest.mark.parametrize("written", ["the dog", "<user>the dog"])
def test_text_that_writes_the_begin_token_itself_gets_no_second_one(opened, written):
    tokenizer = opened(chat_template="never")
    tokenizer.hf.bos_token = "<user>"
    begin = [("<user>", tokenizer.hf.bos_token_id)]
    tokenizer.hf.backend_tokenizer.post_processor = TemplateProcessing(single="<user> $A", special_tokens=begin)
    ids = tokenizer.encode_prompt(written).tolist()
    assert tokenizer.hf.convert_ids_to_tokens(ids).count("<user>") == 1
    assert text(tokenizer, written) == "<user>the dog"


TURNS = (
    "{{% for m in messages %}}{{% if m.role == 'user' %}}<user>{{{{ m.content }}}}{0}{{% else %}}{1}{{{{ m.content }}}}"
    "<eos>{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{2}{{% endif %}}"
)


@pytest.mark.parametrize(
    ("answer", "opening", "reported"),
    [
        ("<bot>", "<bot><think>\n", True),  # as DeepSeek-R1
        ("<bot><think>\n\n</think>\n\n", "<bot><think>\n", True),  # as Qwen3-Thinking
        ("<bot><think>\n\n</think>\n\n", "<bot>", False),  # as Qwen3
        ("<bot>", "<bot><think>\n\n</think>\n\n", False),  # as Qwen3 without thinking
        ("<assistant>", "<assistant>", False),  # a mark that is no token
        ("<bot>", "<bot>", False),
    ],
)
def test_a_tag_that_the_template_writes_in_the_place_of_the_answer_is_reported(
    opened, caplog, answer, opening, reported
):
    opened(template=TURNS.format("<eos>", answer, opening))
    assert ("begins every answer with <think>" in caplog.text) == bool(caplog.text) == reported


@pytest.mark.parametrize(
    ("end", "answer", "header"),
    [("<eos>", "<bot>", "<bot>"), ("<bot>", " ", "")],  # in the second, as Mistral's, a question opens its answer
)
def test_a_template_that_does_not_open_the_assistants_turn_is_reported(opened, caplog, end, answer, header):
    opened(template=TURNS.format(end, answer, ""))
    assert (f"has to begin each answer with '{header}'" in caplog.text) == bool(caplog.text) == bool(header)


def test_a_tokenizer_without_a_question_mark_takes_a_chat_template(opened):
    tokenizer = opened(template="{% for m in messages %}{{ m.content }}{% endfor %}")
    assert tokenizer.encode_prompt("?").tolist() == [tokenizer.end_id]
