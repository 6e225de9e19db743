"""Plans that hold up to some length of a row: beyond it transformers' own forward reads and samples."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from steadyrl.types import Batch, Sampling
from tests import needs
from tests.rounding import NATS

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch import reader as torch_reader  # noqa: E402
from steadyrl.backends.torch import sampler  # noqa: E402
from steadyrl.backends.torch.decoder import checked_plan  # noqa: E402
from steadyrl.backends.torch.generation import Generation  # noqa: E402
from steadyrl.backends.torch.model import split_head  # noqa: E402
from steadyrl.backends.torch.reader import Reader  # noqa: E402

SHAPE = {
    "vocab_size": 60, "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 12,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 12,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 8.0],
}  # fmt: skip
WINDOW, WHOLE = "sliding_attention", "full_attention"
KINDS = {
    "rotations that depend on the longest row": transformers.LlamaConfig(
        **SHAPE, rope_parameters=PLAIN | {"rope_type": "dynamic", "factor": 2.0}
    ),
    "rotations for short and for long rows": transformers.Phi3Config(
        **SHAPE, original_max_position_embeddings=12, rope_parameters=dict(LONG)
    ),
    "those of one kind of layer": transformers.Gemma3TextConfig(
        **SHAPE,
        layer_types=[WINDOW, WHOLE],
        rope_parameters={WHOLE: dict(LONG), WINDOW: LONG | {"original_max_position_embeddings": 40}},
    ),
    "queries scaled by position": transformers.Ministral3Config(
        **SHAPE, rope_parameters=PLAIN | {"llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 12}
    ),
}
NEW = 6


def batch_of(prompt, drawn):
    """Rows of one prompt and a completion each."""
    tokens = np.stack([np.concatenate([prompt, one.ids]) for one in drawn])
    mask = np.zeros(tokens.shape, bool)
    mask[:, len(prompt) :] = True
    return Batch(
        tokens=tokens, lengths=np.full(len(drawn), tokens.shape[1], np.int32), completion_mask=mask,
        sampling_logprobs=np.zeros(tokens.shape, np.float32), rewards=np.zeros(len(drawn)),
        groups=np.zeros(len(drawn), np.int32),
    )  # fmt: skip


@pytest.fixture(params=KINDS)
def model(request):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(KINDS[request.param]).eval()


@pytest.mark.parametrize("length", [12 - NEW, 12 - NEW + 1])
@torch.no_grad()
def test_rows_within_its_reach_go_by_the_plan_and_others_by_transformers(model, length, monkeypatch):
    plan, parts, used = checked_plan(model), split_head(model), []
    assert plan is not None and plan.reach == 12
    for module, name in ((sampler, "Decoder"), (torch_reader, "hidden_states")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, real=real, **more: used.append(real) or real(*args, **more))
    sampling, prompt = Sampling(max_new_tokens=NEW), np.arange(3, 3 + length, dtype=np.int32)
    tokenizer = SimpleNamespace(end_ids=(), pad_id=0, decode=None)
    generation = Generation(parts, plan, model.config.model_type, tokenizer, None, 8)
    drawn = generation([prompt] * 2, sampling, range(2), nullcontext)
    batch = batch_of(prompt, drawn)
    found = Reader(model, parts, plan, None, recompute=False)(batch)
    assert len(used) == (2 if length + NEW <= 12 else 0)

    for one, other in zip(drawn, sampler.sample(parts, None, [prompt] * 2, sampling, range(2), (), 0), strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)
    hidden = parts.body(torch.from_numpy(batch.tokens[:, :-1].astype(np.int64))).last_hidden_state
    mask = torch.from_numpy(batch.completion_mask[:, 1:])
    torch.testing.assert_close(found, hidden[mask], atol=1e-4, rtol=1e-4)
