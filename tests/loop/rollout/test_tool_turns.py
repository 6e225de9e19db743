"""Episodes in which tools are called: the ids that train are those that were drawn, whatever the model's own form."""

import numpy as np
import pytest

from steadyrl.core.protocols import Turn
from steadyrl.core.types import Completion, Problem, Sampling, ToolCall
from steadyrl.loop.rollout.episode import Attempt, Environment
from steadyrl.loop.rollout.multi_turn import play_policy
from tests import needs
from tests.chat_tokenizers import SMOLLM2, chat_tokenizer, unmerged

needs.skip_without_packages("renderers", "httpx", extra="agents")
needs.skip_without_packages("torch", extra="torch")

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Find lists.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
RESULT = {"role": "tool", "name": "look_up"}
FAMILIES = ["hermes", "qwen3", "qwen3.5", "llama-3", "glm-4.5", "deepseek-v3", "kimi-k2"]


def call(text):
    function = {"name": "look_up", "arguments": {"text": text}}
    return {"id": "functions.look_up:0", "type": "function", "function": function}


def says(content="", *texts, **more):
    calls = {"tool_calls": [call(text) for text in texts]} if texts else {}
    return {"role": "assistant", "content": content, **calls, **more}


class Library:
    """Answers calls with tools' messages, everything else with a user's; over after five turns."""

    def __init__(self):
        self.messages = []

    def open(self):
        return [{"role": "user", "content": "How many lists are too long?"}]

    def step(self, message):
        self.messages.append(message)
        results = [
            {
                "role": "tool",
                "content": f"no list of {c['function']['arguments']}",
                "tool_call_id": c["id"],
                "name": "look_up",
            }
            for c in message.get("tool_calls", ())
        ]
        calls = [ToolCall("look_up", {}, "", "ok") for _ in results]
        return Turn(results or [{"role": "user", "content": "look at lists"}], len(self.messages) == 5, 0.5, calls)

    def close(self):
        return {}


class LibraryTask:
    name, metric, max_turns, workers = "library", "", 5, 1
    tools = (TOOL,)

    def __init__(self, family):
        self.library, self.tool_format = Library(), family

    def episode(self, problem, seed):
        return self.library


class Reader:
    """A backend whose policy says what a list says, token for token, and which remembers what it was given to read."""

    def __init__(self, tokenizer, turns):
        self.tokenizer, self.turns, self.prompts = tokenizer, [np.array(turn, np.int32) for turn in turns], []

    def generate(self, prompts, sampling, seeds):
        self.prompts += prompts
        ids = self.turns[len(self.prompts) - 1]
        return [Completion(ids, -np.arange(1.0, len(ids) + 1, dtype=np.float32), "stop")]


def play(family, messages, cut=()):
    """Play an episode in which the policy writes these messages in tokens of its own choice; drop the end of some."""
    task, tokenizer = LibraryTask(family), tokenizer_of(family)
    chat = tokenizer.chat(task.tools, family)
    turns = [unmerged(tokenizer.hf, chat.encode_reply(message, "?").tolist()) for message in messages]
    turns = [turn[:-3] if i in cut else turn for i, turn in enumerate(turns)]
    backend = Reader(tokenizer, turns)
    environment = Environment(task, 8)
    sampling = Sampling(max_new_tokens=8)
    (rollout,) = play_policy(backend, environment, [Attempt(Problem("p", "?"), (0,))], sampling, 0)
    return rollout, backend, task.library


def tokenizer_of(family):
    return chat_tokenizer(family, SMOLLM2) if family == "hermes" else chat_tokenizer(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_trains_is_what_was_drawn_over_five_turns(family):
    several = ["red lists"] if family == "llama-3" else ["red lists", "blue lists"]  # one call at a time
    said = [says("", "tools"), says("I look.", *several), says("", "mood", reasoning_content="A fool thinks."),
            says("so too many lists"), says("tools")]  # fmt: skip
    rollout, backend, library = play(family, said)
    assert rollout.unscored is None
    # By hand: the drawn tokens, and nothing else, are under the mask, with their log-probs.
    assert rollout.completion_ids[rollout.completion_mask].tolist() == np.concatenate(backend.turns).tolist()
    drawn = np.concatenate([-np.arange(1.0, len(turn) + 1) for turn in backend.turns])
    assert rollout.sampling_logprobs[rollout.completion_mask].tolist() == drawn.tolist()
    # Each turn was read behind exactly what the rollout holds before it.
    whole = [*rollout.prompt_ids.tolist(), *rollout.completion_ids.tolist()]
    place = 0
    for prompt, turn in zip(backend.prompts, backend.turns, strict=True):
        assert whole[: len(prompt)] == prompt.tolist()
        assert whole[len(prompt) : len(prompt) + len(turn)] == turn.tolist()
        assert (place := len(prompt) + len(turn)) <= len(whole)
    assert place == len(whole)
    ends = [len(p) + len(t) - len(rollout.prompt_ids) for p, t in zip(backend.prompts, backend.turns, strict=True)]
    assert rollout.turn_rewards == tuple((end, 0.5) for end in ends)
    # The environment read what was said.
    arguments = [[c["function"]["arguments"]["text"] for c in m.get("tool_calls", ())] for m in library.messages]
    assert arguments == [["tools"], several, ["mood"], [], []]
    assert [message["content"] for message in library.messages][3:] == ["so too many lists", "tools"]
    # And the policy read what the environment answered, in the model's own form.
    between = [
        backend.tokenizer.hf.decode(after[len(before) + len(turn) :])
        for before, turn, after in zip(backend.prompts, backend.turns, backend.prompts[1:], strict=False)
    ]
    assert all("no list of" in text for text in between[:3])
    assert "look at lists" in between[3]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_conversation_is_what_the_model_s_own_form_makes_of_it(family):
    """Bridged turn by turn, a conversation of calls and results has the tokens that it has when written as a whole."""
    tokenizer = tokenizer_of(family)
    chat = tokenizer.chat([TOOL], family)
    result = {"role": "tool", "content": "three lists", "tool_call_id": "functions.look_up:0", "name": "look_up"}
    talk = [{"role": "user", "content": "How many?"}]
    ids = chat.encode_prompt(talk)
    for text in ("tools", "lists"):
        turn = chat.encode_reply(says("", text, **({"reasoning_content": "So."} if family == "qwen3.5" else {})), "?")
        ids = np.concatenate([ids, turn, chat.encode_between(ids, turn, [result])])
        talk += [says("", text, **({"reasoning_content": "So."} if family == "qwen3.5" else {})), result]
    assert ids.tolist() == chat.encode_prompt(talk).tolist()


def test_a_turn_and_what_follows_it_in_the_form_of_qwen3():
    rollout, backend, _ = play("qwen3", [says("", "lists"), *[says("so")] * 4])
    text = backend.tokenizer.hf.decode(rollout.completion_ids)
    assert text.startswith(
        '<tool_call>\n{"name": "look_up", "arguments": {"text": "lists"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nno list of {'text': 'lists'}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nso<|im_end|>\n<|im_start|>user\nlook at lists<|im_end|>\n<|im_start|>assistant\nso"
    )


def test_a_turn_and_what_follows_it_where_the_template_has_no_tools():
    rollout, backend, _ = play("hermes", [says("", "lists"), *[says("so")] * 4])
    assert "<tools>\n" in backend.tokenizer.hf.decode(rollout.prompt_ids)
    assert backend.tokenizer.hf.decode(rollout.completion_ids).startswith(
        '<tool_call>\n{"name": "look_up", "arguments": {"text": "lists"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nno list of {'text': 'lists'}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nso<|im_end|>\n"
    )


@pytest.mark.parametrize("family", ["hermes", "qwen3", "qwen3.5", "glm-4.5", "deepseek-v3", "kimi-k2"])
def test_a_call_cut_short_is_no_call_and_the_marks_are_seen(family):
    """The last tokens of the call and the end token are lacking, as behind the limit of a turn."""
    rollout, backend, library = play(family, [says("", "lists"), *[says("so")] * 4], cut=(0,))
    assert rollout.unscored is None
    assert rollout.completion_ids[rollout.completion_mask].tolist() == np.concatenate(backend.turns).tolist()
    assert "tool_calls" not in library.messages[0]
    (invalid,) = library.messages[0]["invalid_tool_calls"]
    assert "look_up" in invalid["text"] and invalid["error"]
    assert "look_up" in rollout.turns[0] and "<" in rollout.turns[0]
