"""What of a completion becomes text: all of it, or all but special tokens, as the config says."""

import re

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.sections import ModelSection
from steadyrl.loop.rollout.episode import text_of
from tests import needs
from tests.loop.rewards.test_trl import group, scored, trl

needs.skip_without_packages("torch", extra="torch")
transformers = needs.package("transformers")

from steadyrl.backends.huggingface.folder import BASE_MODEL  # noqa: E402
from steadyrl.backends.huggingface.tokenizer import HFTokenizer  # noqa: E402

CALL = 'ok <call>{"name":"calc"}</call>'


def strict_format_reward_func(completions, **kwargs):
    """The strict format of the GRPO notebooks."""
    pattern = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$"
    return [0.5 if re.match(pattern, completion, flags=re.DOTALL) else 0.0 for completion in completions]


@pytest.fixture
def opened():
    """Return a function that opens the base model's tokenizer, with two marks of calls as special tokens."""

    def make(padded_rows=None, **settings):
        hf = transformers.AutoTokenizer.from_pretrained(BASE_MODEL)
        hf.add_special_tokens({"additional_special_tokens": ["<call>", "</call>"]})
        rows = {} if padded_rows is None else {"vocabulary": len(hf) + padded_rows}
        return HFTokenizer(hf, config.validate(ModelSection, settings, "model"), **rows)

    return make


def ids_of(tokenizer, text):
    return np.array([*tokenizer.hf(text, add_special_tokens=False)["input_ids"], tokenizer.end_id], np.int32)


def test_special_tokens_are_left_out_and_the_first_ones_reported(opened, caplog):
    tokenizer = opened()
    assert text_of(tokenizer, ids_of(tokenizer, "a plain text"), ()) == "a plain text"
    assert caplog.text == ""
    assert "<call>" not in text_of(tokenizer, ids_of(tokenizer, CALL), ())
    text_of(tokenizer, ids_of(tokenizer, CALL), ())
    (record,) = caplog.records
    assert "(<call>, </call>)" in record.getMessage()
    assert "set model.skip_special_tokens = false" in record.getMessage()


def test_special_tokens_can_be_seen_and_end_tokens_never(opened, caplog):
    tokenizer = opened(skip_special_tokens=False)
    assert text_of(tokenizer, ids_of(tokenizer, CALL), ()) == CALL
    assert text_of(tokenizer, ids_of(tokenizer, CALL), ("</call>",)) == CALL.removesuffix("</call>")
    assert caplog.text == ""


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_ids_of_padded_rows_of_the_embedding_are_reported_once(opened, caplog, skip_special_tokens):
    """Qwen2.5 has 151,665 tokens and 152,064 rows; a policy may come to sample the rows that no token has."""
    tokenizer = opened(padded_rows=3, skip_special_tokens=skip_special_tokens)
    words, first = ids_of(tokenizer, "a plain text"), len(tokenizer.hf)
    assert text_of(tokenizer, words, ()) == "a plain text" and not caplog.records
    for _ in range(2):
        assert text_of(tokenizer, np.array([first + 2, *words]), ()) == "a plain text"
    (record,) = caplog.records
    assert f"ids that no token has (id {first + 2}), which its text leaves out" in record.getMessage()


def test_a_strict_format_of_a_notebook_is_paid_as_trl_pays_it(opened):
    """TRL hands on what ``batch_decode(skip_special_tokens=True)`` gives, with the line break at the end."""
    tokenizer = opened()
    ids = ids_of(tokenizer, "<reasoning>\nx\n</reasoning>\n<answer>\n4\n</answer>\n")
    text = text_of(tokenizer, ids, ())
    assert [text] == tokenizer.hf.batch_decode([ids.tolist()], skip_special_tokens=True)
    assert scored([group(text)], trl("strict", strict_format_reward_func))[0].reward == 0.5
