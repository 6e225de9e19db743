"""The probe of a model folder, measured by transformers' own forward: see ``portable.check_probe``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from steadyrl.backends.huggingface import portable
from steadyrl.backends.huggingface.folder import context_length
from steadyrl.backends.torch.arithmetic import full_float32


def make(model: Any) -> dict[str, Any] | None:
    """See ``portable.make_probe``."""
    # Some embeddings have rows that nothing is ever drawn for (Llama 3.2 Vision).
    vocabulary = min(part().weight.shape[0] for part in (model.get_input_embeddings, model.get_output_embeddings))
    return portable.make_probe(vocabulary, context_length(model.config), *measure_of(model))


def measure_of(model: Any) -> tuple[portable.Measure, str]:
    """Return how a model reads the tokens of a probe, and the precision of its layers."""

    @torch.inference_mode()
    @full_float32()
    def measure(ids: np.ndarray) -> np.ndarray:
        tokens = torch.from_numpy(ids.astype(np.int64)).to(model.device)[None]
        logp = model(input_ids=tokens, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        logprobs: np.ndarray = logp.gather(1, tokens[0, 1:, None])[:, 0].cpu().double().numpy()
        return logprobs

    return measure, "fp32" if model.dtype == torch.float32 else "bf16"
