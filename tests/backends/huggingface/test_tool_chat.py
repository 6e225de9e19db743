"""How tools are described and called: chosen by what writes the model's own template and goes on from its turns."""

import sys

import numpy as np
import pytest

from steadyrl.backends.huggingface.tokenizer import HFTokenizer
from steadyrl.backends.huggingface.tool_chat import RendererChat
from steadyrl.backends.text_chat import TextChat
from steadyrl.core.errors import DataError, MissingExtraError, ModelError
from steadyrl.core.sections import ModelSection
from tests import needs
from tests.chat_tokenizers import SMOLLM2, chat_tokenizer, fast_tokenizer

needs.skip_without_packages("renderers", "httpx", extra="agents")
needs.skip_without_packages("torch", extra="torch")

# The parts of Qwen3's template that conversations without reasoning come to.
QWEN3 = """{%- macro system() %}{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}{% endmacro %}
{%- if tools %}{{- '<|im_start|>system\\n' + system() }}{{- "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] %}{%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""  # noqa: E501
UNHEARD = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + SMOLLM2
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "functions.add:0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def tokenizer_with(template, family="qwen3", **section):
    return HFTokenizer(fast_tokenizer(family, template), ModelSection(**section))


def test_the_renderer_is_the_one_that_writes_the_template_s_tokens():
    chat = tokenizer_with(QWEN3).chat([TOOL])
    assert isinstance(chat, RendererChat)
    assert chat._renderer.config.name == "qwen3"
    # As the template of transformers writes it.
    tokenizer = tokenizer_with(QWEN3)
    talk = [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    talk.append({"role": "tool", "content": "3", "tool_call_id": "functions.add:0", "name": "add"})
    expected = tokenizer.hf.apply_chat_template(talk, tools=[TOOL], add_generation_prompt=True, return_dict=False)
    assert chat.encode_prompt(talk).tolist() == expected


def test_a_template_without_tools_gets_them_in_the_system_message():
    tokenizer = tokenizer_with(SMOLLM2, messages_before=[{"role": "system", "content": "Be brief."}])
    chat = tokenizer.chat([TOOL])
    assert isinstance(chat, TextChat)
    text = tokenizer.hf.decode(chat.encode_prompt([{"role": "user", "content": "1 + 2?"}]))
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '"name": "add"' in text and text.endswith("<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_with_tools_that_no_renderer_writes_is_refused_in_one_line():
    with pytest.raises(ModelError, match="has tools, and no renderer can go on from its turns") as refused:
        tokenizer_with(UNHEARD).chat([TOOL])
    assert "\n" not in str(refused.value)
    assert isinstance(tokenizer_with(UNHEARD).chat([TOOL], "hermes"), TextChat)


def test_a_renderer_of_another_family_is_refused_with_what_the_tokenizer_lacks():
    with pytest.raises(ModelError, match=r"'llama-3' does not fit the model's tokenizer: .*begin_of_text"):
        tokenizer_with(None).chat([TOOL], "llama-3")
    with pytest.raises(ModelError, match="'no-such' is no form of calls; known are auto, hermes, python, qwen3"):
        tokenizer_with(None).chat([TOOL], "no-such")


@pytest.mark.parametrize("package", ["renderers", "httpx"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch, package):
    for module in [name for name in sys.modules if name.split(".")[0] == "renderers"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}' is not installed .* pip install 'steadyrl\[agents\]'"):
        tokenizer_with(QWEN3).chat([TOOL])


def test_the_ends_of_turns_that_only_the_renderer_knows_end_turns():
    tokenizer = chat_tokenizer("glm-4.5")
    before = tokenizer.end_ids
    tokenizer.chat([TOOL], "glm-4.5")
    new = [tokenizer.hf.convert_ids_to_tokens(id) for id in set(tokenizer.end_ids) - set(before)]
    assert sorted(new) == ["<|observation|>", "<|user|>"]


def test_calls_in_the_data_reach_a_template_that_has_them_and_are_refused_by_one_that_has_not():
    talk = [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    talk.append({"role": "tool", "content": "3", "tool_call_id": "functions.add:0"})
    tokenizer = tokenizer_with(QWEN3)
    assert '{"name": "add", "arguments": {"a": 1}}' in tokenizer.hf.decode(tokenizer.encode_prompt(talk))
    with pytest.raises(ModelError, match="leaves out the calls of tools in message 2 of the roles user, assist"):
        tokenizer_with(SMOLLM2).encode_prompt(talk)
    with pytest.raises(DataError, match="no chat template that could write the call"):
        tokenizer_with(None).encode_prompt(talk)


def test_marks_of_calls_stay_in_the_text_that_an_environment_sees():
    tokenizer = chat_tokenizer("qwen3")
    chat = tokenizer.chat([TOOL], "qwen3")
    ids = np.array(
        tokenizer.hf.encode('hm <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>')
    )
    reply = chat.parse(np.array([0]), ids, ())
    assert reply.text == 'hm <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert reply.message["content"] == "hm"
    assert [call["function"] for call in reply.message["tool_calls"]] == [CALL["function"]]
