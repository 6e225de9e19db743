"""Compiled layers and joined products against the same as written; a CPU compiles by tracing alone."""

import numpy as np
import pytest

from steadyrl.core import config
from tests import needs
from tests.backends.ppo_batch import ALGORITHM, NARROW, scored_batch, step
from tests.rounding import NATS, rounding

torch = needs.package("torch")
transformers = needs.package("transformers")

from steadyrl.backends.torch import compiled, products  # noqa: E402
from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from steadyrl.backends.torch.decoder import Decoder  # noqa: E402
from steadyrl.backends.torch.fits import through_ours  # noqa: E402
from steadyrl.backends.torch.graph import StepState  # noqa: E402
from steadyrl.backends.torch.model import split_head  # noqa: E402
from tests.backends.torch.elsewhere import pretended  # noqa: E402
from tests.backends.torch.test_decoder import COMMON, ROTARY, random_model  # noqa: E402

FAMILIES = ("llama, untied, biases", "gemma3, a window and a rotation by kind", "phi3, half of a head turns, window",
            "gpt_neox", "gpt2")  # fmt: skip


@pytest.fixture(autouse=True)
def anew():
    """Forget what was compiled, and put the compiler's settings back."""
    settings = torch._dynamo.config
    before = settings.suppress_errors, settings.recompile_limit
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    settings.suppress_errors, settings.recompile_limit = before


def parts_of(model):
    return through_ours(model, split_head(model))


@torch.no_grad()
def decoded(parts, monkeypatch, siblings=()):
    """Return the logits of two captured steps on a device for which nothing is laid out in blocks."""
    monkeypatch.setattr(products, "lays_blocks", lambda *_: False)
    ids = torch.arange(12).view(3, 4) + 5
    with products.laid_out(parts.body, 3, torch.float32, siblings):
        decoder = Decoder(parts, 3, 7)
        with compiled.eager():
            _, cache = decoder.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
        state = StepState(cache)
        return torch.stack([state.step(decoder, torch.tensor([7, 8, 9 + n]), cache) for n in range(2)])


@pytest.mark.parametrize("name", FAMILIES)
def test_compiled_layers_decode_what_the_layers_do(name, monkeypatch):
    parts = parts_of(random_model(name))
    assert parts.ours
    expected = decoded(parts, monkeypatch)
    siblings = products.siblings_of(parts.body)
    compiled.compile_layers(parts.body, "aot_eager")
    torch._dynamo.config.suppress_errors = False
    found = decoded(parts, monkeypatch, siblings)
    torch.testing.assert_close(found, expected, rtol=0, atol=rounding(expected.abs().max().item()))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not any(products.LAID in vars(module) for module in parts.body.modules())


def test_all_layers_share_one_code(monkeypatch):
    graphs = []
    for layers in (2, 5):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        shape = COMMON | ROTARY | {"num_hidden_layers": layers}
        parts = parts_of(transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config(**shape)).eval())
        siblings = products.siblings_of(parts.body)
        compiled.compile_layers(parts.body, "aot_eager")
        decoded(parts, monkeypatch, siblings)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] <= 5


def test_modules_that_read_one_input_are_found_and_joined():
    parts = parts_of(random_model("llama, untied, biases"))
    groups = products.siblings_of(parts.body)
    layers = parts.body.layers
    expected = []
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        expected += [[attention.q_proj, attention.k_proj, attention.v_proj], [mlp.gate_proj, mlp.up_proj]]
    assert [list(map(id, group)) for group in groups] == [list(map(id, group)) for group in expected]
    x = torch.randn(3, 1, 32)
    q, k, v = groups[0]
    separate = [module(x) for module in groups[0]]
    for (module, forward), alone in zip(products.joined(groups[0], torch.float32), separate, strict=True):
        torch.testing.assert_close(forward(x), alone)
        assert module.laid.weight.shape == (32 + 16 + 16, 32)
        assert module.laid.weight is q.laid.weight
    compute = torch.compile(lambda x: [module.forward(x) for module in (q, k, v)], backend="aot_eager", fullgraph=True)
    with pytest.MonkeyPatch.context() as patch:
        for module, forward in products.joined(groups[0], torch.float32):
            patch.setattr(module, "forward", forward)
        for found, alone in zip(compute(x), separate, strict=True):
            torch.testing.assert_close(found, alone)


def test_what_a_graph_computes_twice_it_computes_once():
    def twice(x, w):
        return torch.mm(x + 1, w)[:, :2], torch.mm(x + 1, w)[:, 2:], torch.mm(x + 2, w)

    x, w = torch.randn(3, 4), torch.randn(4, 4)
    traced = torch.fx.experimental.proxy_tensor.make_fx(twice)(x, w)
    compiled.once(traced.graph)
    traced.recompile()
    names = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert names.count(torch.ops.aten.mm.default) == 2
    assert names.count(torch.ops.aten.add.Tensor) == 2
    for found, expected in zip(traced(x, w), twice(x, w), strict=True):
        torch.testing.assert_close(found, expected)


def test_random_numbers_are_drawn_as_often_as_a_graph_says():
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (torch.rand_like(x), torch.rand_like(x)))(
        torch.zeros(4)
    )
    compiled.once(traced.graph)
    names = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    assert len([name for name in names if "rand_like" in name]) == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of what compiles
def test_a_backend_with_compiled_layers_computes_what_another_does(tiny_models):
    found = []
    for engine in (None, "aot_eager"):
        settings = {
            "model": {"path": str(tiny_models["qwen2"])},
            "backend": {"device": "cpu", "threads": 1},
            "rewards": {"length": 1.0},
        }
        backend = TorchBackend(config.resolve(settings), ALGORITHM)
        if engine is not None:
            for model in (backend.model, backend.reference.model):
                compiled.compile_layers(model, engine)
            torch._dynamo.config.suppress_errors = False
        with compiled.eager():
            batch = scored_batch(backend, NARROW, samples=2)
        scores = backend.score(batch, NARROW, ALGORITHM.needs)
        found.append((batch, scores, step(backend, batch)))
    (one, scores, plain), (other, again, traced) = found
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert (one.tokens == other.tokens).all()
    assert abs(scores.logprobs - again.logprobs).max() <= NATS
    assert abs(scores.ref_logprobs - again.ref_logprobs).max() <= NATS
    assert traced["grad_norm"][0] == pytest.approx(plain["grad_norm"][0], rel=1e-4)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_a_fused_run_reads_its_layers_compiled_on_a_device_only(tiny_models, monkeypatch):
    asked = []
    monkeypatch.setattr(compiled, "compile_layers", asked.append)
    settings = {"model": {"path": str(tiny_models["llama"])}, "rewards": {"length": 1.0},
                "backend": {"device": "cuda", "threads": 1, "args": {"fused": True}}}  # fmt: skip
    with pretended():
        backend = TorchBackend(config.resolve(settings), ALGORITHM)
        assert [len(group) for group in backend.parts.fused] == [3, 2, 3, 2]
        assert [id(model) for model in asked] == [id(backend.model), id(backend.reference.model)]
        batch = scored_batch(backend, NARROW, samples=2)
        assert step(backend, batch)["grad_norm"][0] > 0
        plain = TorchBackend(config.resolve(settings, ["backend.args.fused=false"]), ALGORITHM)
        np.testing.assert_array_equal(scored_batch(plain, NARROW, samples=2).tokens, batch.tokens)
    here = TorchBackend(config.resolve(settings, ["backend.device=cpu"]), ALGORITHM)
    assert (here.parts.fused, len(asked)) == (None, 2)
