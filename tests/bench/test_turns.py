"""What the benchmark of turns counts is what the decoder and the prefixes do, whatever their calls look like."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from tests import needs

torch = needs.package("torch")
needs.package("transformers")

from steadyrl.backends.torch.draw.decoder import Decoder  # noqa: E402
from steadyrl.backends.torch.draw.prefixes import Prefixes  # noqa: E402
from tests.backends.torch.test_decoder import padded, parts_of, random_model  # noqa: E402


@pytest.fixture
def turns(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    return importlib.import_module("turns")


@torch.no_grad()
def test_tokens_that_are_read_and_bytes_that_are_kept_are_counted(turns):
    ids, visible = padded()
    model, prefixes = random_model("qwen3"), Prefixes(2)
    decoder, config = Decoder(parts_of(model), 4, 30), model.config

    def work():
        _, cache = decoder.prefill(ids, visible, (), 3, room=2)
        prefixes.keep(np.arange(2), cache, 0)
        return prefixes.hand_over([np.arange(3)])

    _, tokens, kept, (prefix,) = turns.measured(work)
    assert tokens == int(visible.sum())
    numbers = config.num_hidden_layers * config.num_key_value_heads * len(prefix) * config.head_dim
    assert kept == 2 * numbers * torch.finfo(torch.float32).bits // 8
