"""How many kernels a decoding step launches: test_decoding_kernels.py runs this file by Triton's interpreter."""

from collections import Counter

import pytest
import torch
import transformers

from steadyrl.backends.torch.draw import decoder as torch_decoder
from steadyrl.backends.torch.draw.decoder import Decoder
from steadyrl.backends.torch.draw.graph import StepState
from steadyrl.backends.torch.kernels import decoding_kernels, fused, layer_kernels
from steadyrl.backends.torch.read import products
from steadyrl.backends.torch.read.products import quicken
from steadyrl.backends.torch.read.reads import reads_of
from tests.backends.torch.launches import Launches
from tests.backends.torch.test_decoder import COMMON, ROTARY, padded, parts_of


def launches_of(layers, kernels, monkeypatch):
    """Return what a captured step of a model in bfloat16 launches, and the bytes of the weights that it reads."""
    settings = transformers.Qwen2Config(**COMMON, **(ROTARY | {"num_hidden_layers": layers}), tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(settings).eval()
    monkeypatch.setattr(torch_decoder, "kernels", lambda device: decoding_kernels if kernels else None)
    monkeypatch.setattr(fused, "layer_kernels", lambda device: layer_kernels if kernels else None)
    monkeypatch.setattr(products, "lays_blocks", lambda *_: False)
    parts = parts_of(model)
    quicken(model)
    reads = reads_of(parts.body)
    if kernels:
        fused.fuse_layers(parts.body)
        fused.fuse_sums(parts.body, reads.multiplied)
    ids, visible = padded((4, 2))
    counted = Launches()
    with products.laid_out(parts.body, 4, torch.bfloat16, reads.siblings, decoding_kernels if kernels else None):
        decoder = Decoder(parts, 4, 20, torch.bfloat16)
        _, cache = decoder.prefill(ids, visible)
        state = StepState(cache)
        with counted.of_triton(monkeypatch), torch.autocast("cpu", torch.bfloat16), counted:
            state.step(decoder, ids[:, -1], cache)
    return counted


@pytest.mark.parametrize(("kernels", "most"), [(True, 8), (False, 37)])
@torch.no_grad()
def test_a_layer_of_a_decoding_step_launches_few_kernels_and_reads_its_weights_once(kernels, most, monkeypatch):
    """Of a further layer: what a step of three launches more than one of two."""
    two, three = (launches_of(layers, kernels, monkeypatch) for layers in (2, 3))
    further = Counter(three.names) - Counter(two.names)
    assert further.total() == len(three.names) - len(two.names) <= most, further
    # Queries, keys and values, the output, gate and up, and down; two bytes a number.
    weights = 32 * (32 + 16 + 16) + 32 * 32 + 2 * 32 * 48 + 48 * 32
    assert three.weight_bytes - two.weight_bytes == 2 * weights
    assert further["_product_parts"] == (2 if kernels else 0), "of attention and of the feed-forward"
