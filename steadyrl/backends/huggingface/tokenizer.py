"""The tokenizer of a model folder: prompts through its chat template, and every token that ends a completion."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from steadyrl.backends.huggingface.tool_chat import RendererChat, choose_renderer
from steadyrl.backends.text_chat import FORMATS, TextChat
from steadyrl.core.errors import ModelError
from steadyrl.core.protocols import Chat
from steadyrl.core.sections import ModelSection
from steadyrl.core.types import TAG, Message, message_key, outline, plain_text

log = logging.getLogger(__name__)

_MARK = "\u2063answer\u2063"  # what an assistant said, found again in what a chat template made of it
_MARKED = re.compile(rf"{_MARK}\d+{_MARK}")
_CALLED = "marked_function_"  # the same for the names of functions, which templates may write as JSON
_TRIAL_TOOLS = ({"type": "function", "function": {"name": _CALLED, "description": "", "parameters": {}}},)
_QUESTION = {"role": "user", "content": "?"}
_MAX_OUTLINES = 10_000  # that are remembered
# What templates raise: their own errors, and those of the Python methods that they call.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
_SAMPLE_TEXT = "The 3.5 naïve 'users' of É2 said:\n\tif x_1 != [{y}]: return 1e-9  # Привет, 世界! مرحبا 🙂"
_UNKNOWN = 1 << 31  # rows of an embedding that nobody has looked at
_LEAST_SHARE = 0.75  # of the rows; in real models all but a few of them have words
_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>")  # how most families write the marks of a turn


class HFTokenizer:
    """See Tokenizer.

    Args:
        tokenizer: Of transformers.
        section: Whether the chat template is used, with which arguments, and the messages before every prompt.
        stated_ends: What the model's generation config states as its end tokens: a number, a list of them, or None.
        vocabulary: Rows of the model's embedding.
        beside: Other files of the model's folder, by name, that programs which read texts and images look for there.

    Raises:
        ModelError: The chat template fails or leaves a message out, nothing names an end token, words have no row in
            the embedding, or the end tokens that the model states are ordinary words or no tokens at all.
    """

    def __init__(
        self,
        tokenizer: Any,
        section: ModelSection,
        stated_ends: Any = None,
        vocabulary: int = _UNKNOWN,
        beside: Mapping[str, bytes] | None = None,
    ):
        self.hf, self._vocabulary, self._beside = tokenizer, vocabulary, beside or {}
        self._chat = section.chat_template == "auto" and bool(tokenizer.chat_template)
        self._template_args = section.template_args
        self._skip_special = section.skip_special_tokens
        self._chat_of: tuple[object, Chat] | None = None  # the newest tools with their form, and how they are called
        self._content_as_list = False
        self._messages_before = [message.model_dump() for message in section.messages_before]
        self._complete_outlines: set[tuple[tuple[str, str, str], ...]] = set()  # outlines that lose nothing
        self._check_vocabulary()
        tokenizer_ends = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        if self._chat:
            self._content_as_list = self._needs_content_list()
            # A template that fails is reported before anything is paid.
            self._require_complete(self._with_messages_before([_QUESTION]))
            self._warn_of_template()
            # The special token that the chat template writes behind an assistant's words, if there is one, ends a turn.
            _, mark, after = self._around_answer()
            behind = self._ids(after.lstrip())[:1] if mark else []
            tokenizer_ends = [*(id for id in behind if id in self._special_ids()), *tokenizer_ends]
        stated = self._checked_ends(stated_ends)
        ends = [id for id in dict.fromkeys([*tokenizer_ends, *stated]) if 0 <= id < vocabulary]
        if not ends:
            raise ModelError(
                "the model's tokenizer names no end-of-sequence token, so that no completion could end; set "
                "eos_token in its tokenizer_config.json"
            )
        self.end_id, self.end_ids = ends[0], tuple(ends)
        # Padding is masked everywhere; without a pad token of its own any id serves.
        pad = tokenizer.pad_token_id
        self.pad_id = int(pad) if pad is not None and pad < vocabulary else self.end_id
        # What a text leaves out: special tokens, and rows of the embedding that are no token's. Many embeddings are
        # padded to a round number of rows, which a policy may come to sample.
        special = self._special_ids() - {*self.end_ids, self.pad_id} if self._skip_special else set()
        rows = range(vocabulary) if vocabulary < _UNKNOWN else ()
        self._unreported_ids = frozenset(special | (set(rows) - set(tokenizer.get_vocab().values())))

    def encode_prompt(self, prompt: str | Sequence[Message]) -> np.ndarray:
        """Return [P] int32 ids; with a chat template a text is one user message.

        The messages that the config puts before every prompt come first, less their system message where the prompt has
        one of its own.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return self._encode(self._with_messages_before(messages))

    def chat(self, tools: Sequence[Mapping[str, Any]], tool_format: str = "auto") -> Chat:
        """See Conversing. Tokens that end a turn in the model's own form of calls join ``end_ids``."""
        key = (tool_format, list(tools))
        if self._chat_of is None or self._chat_of[0] != key:
            self._chat_of = (key, self._new_chat(tools, tool_format))
        return self._chat_of[1]

    def _new_chat(self, tools: Sequence[Mapping[str, Any]], tool_format: str) -> Chat:
        if not tools:
            return TextChat(self)
        if tool_format == "auto" and not self._template_has_tools():
            tool_format = "hermes"

        def encode(messages: Sequence[Message], tools_text: str) -> np.ndarray:
            """Return the ids of messages, with the tools described at the end of the system message."""
            messages = self._with_messages_before(messages)
            system = messages[0]["content"] if messages[0]["role"] == "system" else ""
            described = {"role": "system", "content": "\n\n".join(filter(None, [system, tools_text]))}
            return self._encode([described, *messages[messages[0]["role"] == "system" :]])

        def decode(ids: np.ndarray) -> str:
            """Return the text of ids with all special tokens but those that end it: they may mark calls."""
            return str(self.hf.decode([id for id in ids.tolist() if id not in self.end_ids], skip_special_tokens=False))

        if tool_format in FORMATS:
            return TextChat(self, tools, FORMATS[tool_format], encode, decode)

        def template_ids(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
            return self._ids(self._apply_template(messages, True, tools))

        renderer = choose_renderer(self.hf, tool_format, self._template_args, template_ids if self._chat else None)
        chat = RendererChat(renderer, self.hf, tools, self.end_ids, self._with_messages_before)
        self.end_ids = chat.end_ids
        return chat

    def _template_has_tools(self) -> bool:
        try:
            return self._chat and _CALLED in self._apply_template([_QUESTION], True, _TRIAL_TOOLS)
        except ModelError:
            return False

    def _with_messages_before(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages behind those that the config puts before every prompt."""
        own_system = messages[0]["role"] == "system"
        before = [message for message in self._messages_before if not (own_system and message["role"] == "system")]
        return [*messages[:own_system], *before, *messages[own_system:]]

    def _encode(self, messages: Sequence[Message]) -> np.ndarray:
        if self._chat:
            self._require_complete(messages)
            # Text first, then ids: the template writes its own special tokens, a second set must not be added.
            ids = self._ids(self._apply_template(messages, add_generation_prompt=True))
        else:
            ids = self.hf(plain_text(messages))["input_ids"]
            if ids[:2] == [self.hf.bos_token_id] * 2:
                ids = ids[1:]  # text that another program rendered may write the begin token itself
            if ids and ids[-1] in self.end_ids:
                ids = ids[:-1]  # some tokenizers close every text; a closed prompt leaves nothing to say
        return self._checked_ids(ids or [self.end_id])

    def encode_answer(self, text: str, after: str) -> np.ndarray:
        """See Tokenizer. Without a chat template a space parts the answer from what it follows."""
        lead = "" if self._chat or after[-1:].isspace() else " "
        return self._checked_ids([*self._ids(lead + text), self.end_id])

    def encode_turn(self, observation: str, ended: bool) -> np.ndarray:
        """See Tokenizer. With a chat template the observation is a user message, else a paragraph."""
        ids = self._ids(self._text_between_turns(observation) if self._chat else "\n" + observation)
        closed = bool(ids) and ids[0] in self.end_ids
        if ended and closed:
            ids = ids[1:]
        elif not ended and not closed:
            ids = [self.end_id, *ids]
        return self._checked_ids(ids)

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files, and those beside it."""
        self.hf.save_pretrained(folder)
        for name, content in self._beside.items():
            (folder / name).write_bytes(content)

    def identity(self) -> str:
        """See Identified. A template that writes the day is the same on another day."""
        template = self.hf.chat_template if self._chat else None
        content = [self.hf(_SAMPLE_TEXT)["input_ids"], self.end_ids, template]
        return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()

    def decode(self, ids: np.ndarray) -> str:
        """See Tokenizer. The first token that is left out is reported, for it may be one to read."""
        text_ids: list[int] = ids.tolist()
        if not self._skip_special:
            text_ids = [id for id in text_ids if id not in self.end_ids]
        if not self._unreported_ids.isdisjoint(text_ids):
            left_out = dict.fromkeys(id for id in text_ids if id in self._unreported_ids)
            log.warning(
                "the policy wrote special tokens, or ids that no token has (%s), which its text leaves out, so that no "
                "reward, judge or episode sees them; if they mark calls or reasoning, set "
                "model.skip_special_tokens = false",
                ", ".join(self.hf.convert_ids_to_tokens(id) or f"id {id}" for id in list(left_out)[:3]),
            )
            self._unreported_ids = frozenset()
        # Of a list transformers asks the type of each number, which takes longer than to decode them.
        text: str = self.hf.decode(np.array(text_ids, np.int64), skip_special_tokens=self._skip_special)
        return text

    def _check_vocabulary(self) -> None:
        """Refuse a tokenizer of another model; special tokens past the embedding are no words (Gemma 3 has one)."""
        special = {id for id, token in self.hf.added_tokens_decoder.items() if token.special}
        words = {id for id in self.hf.get_vocab().values() if id not in special}
        largest_id = max(words, default=None)
        if largest_id is None:
            raise ModelError("the tokenizer knows no words; expected the tokenizer that the model was trained with")
        if largest_id >= self._vocabulary:
            raise ModelError(
                f"the tokenizer knows words with ids up to {largest_id}, and the model's embedding has "
                f"{self._vocabulary} rows; expected the tokenizer that the model was trained with"
            )
        if len(words) < _LEAST_SHARE * self._vocabulary < _LEAST_SHARE * _UNKNOWN:
            log.warning(
                "the tokenizer knows %d words, and the model's embedding has %d rows; what only the others could write "
                "is left out of prompts and answers. Is its tokenizer.json whole?", len(words), self._vocabulary,
            )  # fmt: skip

    def _checked_ends(self, stated: Any) -> list[int]:
        """Return the end tokens that a model states; refuse ids without a token, or all of which are ordinary words."""
        ids: list[int] = stated if isinstance(stated, list) else [] if stated is None else [stated]
        expected = (
            "expected the tokenizer that the model was trained with, or another eos_token_id in generation_config.json"
        )
        wrong = [id for id in ids if type(id) is not int]
        if wrong or (ids and not any(0 <= id < self._vocabulary for id in ids)):
            raise ModelError(
                f"the model states that its texts end with the token {(wrong or ids)[0]!r:.40}, which is no id below "
                f"{self._vocabulary}, the rows of its embedding; {expected}"
            )
        special = {*self.hf.added_tokens_decoder, *self.hf.all_special_ids}
        words = [self.hf.convert_ids_to_tokens(id) for id in ids if id not in special and 0 <= id < len(self.hf)]
        if words and len(words) == len(ids):
            raise ModelError(
                f"the model states that its texts end with the token {ids[0]}, which is the ordinary word "
                f"{words[0]!r} of the tokenizer; {expected}"
            )
        return ids

    def _needs_content_list(self) -> bool:
        """Return whether the chat template reads a message in parts alone, as many do of models of images too."""
        for self._content_as_list in (False, True):
            with suppress(ModelError):
                if _MARK in self._apply_template([{"role": "user", "content": _MARK}], add_generation_prompt=True):
                    return self._content_as_list
        return False

    def _require_complete(self, messages: Sequence[Message]) -> None:
        """Refuse a chat template that leaves out what a message says; each outline of messages is looked at once."""
        shape = tuple(map(message_key, outline(messages)))
        if shape in self._complete_outlines:
            return
        marked = outline(messages, (f"{_MARK}{number}{_MARK}" for number in count()))
        for index, message in enumerate(marked):
            if calls := message.get("tool_calls"):  # their names are found again in what the template makes of them
                functions = [{**call["function"], "name": f"{_CALLED}{index}_"} for call in calls]
                renamed = [{**call, "function": function} for call, function in zip(calls, functions, strict=True)]
                marked[index] = {**message, "tool_calls": renamed}
        text = self._apply_template(marked, add_generation_prompt=True)
        for number, message in enumerate(marked, start=1):
            if message.get("tool_calls") and f"{_CALLED}{number - 1}_" not in text:
                raise ModelError(
                    f"the model's chat template leaves out the calls of tools in message {number} of the roles "
                    f"{', '.join(turn['role'] for turn in messages)}; take a model with a template for tools, or put "
                    "the calls into the message's content"
                )
            marks = _MARKED.findall(message["content"])
            lost = [mark for mark in marks if mark not in text]
            if not lost:
                continue
            before, _, after = message["content"].partition(lost[0])
            tags = [*TAG.findall(before)[-1:], *TAG.findall(after)[:1]]
            part = (
                ""
                if lost == marks
                else f" beside {' and '.join(tags)}, as many do with the reasoning of earlier answers"
            )
            raise ModelError(
                f"the model's chat template leaves out what message {number} of the roles "
                f"{', '.join(turn['role'] for turn in messages)} says{part}; leave such "
                f"{'parts' if part else 'messages'} out yourself, so that the data hold what the policy reads, correct "
                "the template, or set model.chat_template = 'never'"
            )
        if len(self._complete_outlines) >= _MAX_OUTLINES:
            self._complete_outlines.clear()
        self._complete_outlines.add(shape)

    def _warn_of_template(self) -> None:
        """Warn of what looks like another model's template, and of arguments that the template does not know."""
        source = str(self.hf.chat_template)
        for name in self._template_args:
            if name not in source:
                log.warning("model.template_args: the model's chat template does not know '%s'", name)
        if "strftime_now" in source and "date_string" not in self._template_args:
            log.warning(
                "the model's chat template can write today's date into prompts (strftime_now), so that a run which is "
                "resumed on another day reads other ones; set model.template_args.date_string if the template knows it"
            )
        text = self._apply_template([_QUESTION], add_generation_prompt=True)
        self._warn_of_opening(text)
        odd = [mark for mark in dict.fromkeys(_SPECIAL.findall(text)) if len(self._ids(mark)) > 1]
        if odd:
            log.warning(
                "the model's chat template writes %s, which is no token of its own to the tokenizer but ordinary text; "
                "if the template is another model's, set model.chat_template = 'never'", ", ".join(odd[:3]),
            )  # fmt: skip

    def _warn_of_opening(self, opened: str) -> None:
        """Warn of a tag in the answer's place, and of a turn that is not opened, in the text for a question."""
        before, mark, _ = self._around_answer()
        begun = [tag for tag in TAG.findall(opened)[-1:] if tag[1] != "/" and opened.rstrip().endswith(tag)]
        # The mark of the assistant's turn is a special token, or stands before every answer.
        if begun and not before.rstrip().endswith(begun[0]) and not self._special_ids().issuperset(self._ids(begun[0])):
            log.warning(
                "the model's chat template begins every answer with %s, which is thereby part of the prompt: the text "
                "that rewards see begins behind it, and a reward that looks for it there never pays", begun[0],
            )  # fmt: skip
        header = before[len(opened) :].strip() if before.startswith(opened) else ""
        if mark and header and opened == self._apply_template([_QUESTION], add_generation_prompt=False):
            log.warning(
                "the model's chat template does not open the assistant's turn (it has no add_generation_prompt), so "
                "that the policy itself has to begin each answer with %r; correct its chat_template.jinja", header,
            )  # fmt: skip

    def _checked_ids(self, ids: Sequence[int]) -> np.ndarray:
        if max(ids, default=0) >= self._vocabulary:
            raise ModelError(
                f"a text holds the token {self.hf.convert_ids_to_tokens(max(ids))!r} (id {max(ids)}), and the model's "
                f"embedding has {self._vocabulary} rows; leave the token out of the text"
            )
        return np.array(ids, np.int32)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.hf(text, add_special_tokens=False)["input_ids"]
        return ids

    def _text_between_turns(self, observation: str) -> str:
        """Return what the chat template writes between an assistant's words and its next ones."""
        talk = [_QUESTION, {"role": "assistant", "content": _MARK}]
        talk.append({"role": "user", "content": observation})
        _, mark, after = self._apply_template(talk, add_generation_prompt=True).rpartition(_MARK)
        if not mark:
            raise ModelError(
                "the model's chat template leaves out what the assistant said in earlier turns; set "
                "model.chat_template = 'never', or choose a task of one turn"
            )
        return after

    def _around_answer(self) -> tuple[str, str, str]:
        """Return the template's text before an answer, the answer's mark and the text behind it; all may be empty."""
        talk = [_QUESTION, {"role": "assistant", "content": _MARK}]
        try:
            return self._apply_template(talk, add_generation_prompt=False).rpartition(_MARK)
        except ModelError:  # a template for questions only serves tasks of one turn
            return "", "", ""

    def _special_ids(self) -> set[int]:
        return {id for id, token in self.hf.added_tokens_decoder.items() if token.special} | {*self.hf.all_special_ids}

    def _apply_template(
        self, talk: Sequence[Message], add_generation_prompt: bool, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        messages: list[dict[str, Any]] = [dict(turn) for turn in talk]
        if self._content_as_list:
            for turn in messages:
                turn["content"] = [{"type": "text", "text": turn["content"]}]
        try:
            text: str = self.hf.apply_chat_template(
                messages,
                tools=tools and list(tools),
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **self._template_args,
            )
        except _TEMPLATE_ERRORS as error:
            raise ModelError(
                f"the model's chat template fails on the roles {', '.join(turn['role'] for turn in talk)}: {error}; "
                "correct its chat_template.jinja or model.template_args, or set model.chat_template = 'never'"
            ) from error
        return text
