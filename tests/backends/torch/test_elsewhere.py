"""What a GPU asks of the code: no tensor of the CPU among those of the device, and no waiting in a decoding step."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from steadyrl.core import config
from tests import needs
from tests.backends.ppo_batch import ALGORITHM, NARROW, PLAIN, prompts_of, scored_batch, step

torch = needs.package("torch")
needs.skip_without_packages("transformers", "peft", extra="torch")

from steadyrl.backends.torch.arithmetic import fast_float32, full_float32  # noqa: E402
from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from steadyrl.backends.torch.deterministic import deterministic  # noqa: E402
from steadyrl.backends.torch.device import chosen_device  # noqa: E402
from steadyrl.backends.torch.draw import batch as decoding  # noqa: E402
from steadyrl.backends.torch.draw import graph  # noqa: E402
from steadyrl.backends.torch.read import packed  # noqa: E402
from tests.backends.torch.elsewhere import Elsewhere, MixedDevicesError, policies, pretended  # noqa: E402
from tests.rounding import NATS  # noqa: E402

# peft reads a property of the model that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
LONG = replace(PLAIN, max_new_tokens=20)
ON_CPU = "backend.args.reference=cpu"


def weekly(*settings):
    """Return sessions of one setting each, which is like one that is tried."""
    return [pytest.param((setting,), marks=pytest.mark.weekly) for setting in settings]


@pytest.fixture
def opened(tiny_models):
    """Return a function that opens a backend on a device, in float32 unless it is asked for another precision."""

    def open_one(device, *overrides):
        settings = {
            "model": {"path": str(tiny_models["llama"])},
            "backend": {"device": device, "threads": 1, "precision": "fp32"},
            "rewards": {"length": 1.0},
        }
        return TorchBackend(config.resolve(settings, overrides), ALGORITHM)

    return open_one


@pytest.mark.parametrize(
    "overrides", [(ON_CPU,), *weekly("model.lora_rank=4", "backend.args.gradient_checkpointing=true")]
)
def test_sampling_scoring_and_updates_stay_on_the_device(opened, overrides):
    here = opened("cpu", *overrides)
    batches, stats = [], []
    batches.append(scored_batch(here, NARROW, samples=2))
    stats.append(step(here, batches[0]))
    with pretended(any_order=False):
        there = opened("cuda", *overrides)
        batches.append(scored_batch(there, NARROW, samples=2))
        stats.append(step(there, batches[1]))
        assert all(isinstance(p, Elsewhere) for p in there.trainable().values())
        assert all(isinstance(x, Elsewhere) for s in there.optimizer.state.values() for x in s.values())
    np.testing.assert_array_equal(batches[1].tokens, batches[0].tokens)
    np.testing.assert_allclose(batches[1].old.logprobs, batches[0].old.logprobs, atol=NATS)
    np.testing.assert_array_equal(batches[1].kept.ids, batches[0].kept.ids)
    assert stats[1]["grad_norm"] == pytest.approx(stats[0]["grad_norm"], rel=1e-4)
    for one, other in zip(here.trainable().values(), there.trainable().values(), strict=True):
        torch.testing.assert_close(other.detach().held, one.detach(), atol=1e-4, rtol=0)


def test_a_reference_that_is_kept_on_the_cpu_is_on_the_device_while_it_scores_only(opened):
    expected = scored_batch(opened("cpu"), NARROW).old.ref_logprobs
    with pretended():
        there = opened("cuda", ON_CPU)
        model, seen = there.reference.model, []
        before = {name: p.clone() for name, p in model.named_parameters()}
        read = there.reference.read
        there.reference.read = lambda part: seen.append({id(p): p for p in model.parameters()}) or read(part)
        assert "reference" not in there.describe()["memory"]
        batch = scored_batch(there, NARROW)
        np.testing.assert_allclose(batch.old.ref_logprobs, expected, atol=NATS)
        assert len(seen) == 1
        assert all(isinstance(p, Elsewhere) for p in seen[0].values())
        assert not any(isinstance(p, Elsewhere) for p in model.parameters())
        assert {n: p.tolist() for n, p in model.named_parameters()} == {n: p.tolist() for n, p in before.items()}
        there.reference.read = None
        there.score(batch, NARROW, ALGORITHM.needs - {"ref_logprobs"})  # nothing is copied where nothing asks for it


@pytest.mark.parametrize(
    ("sampling", "stop"),
    [
        pytest.param(LONG, (), marks=pytest.mark.weekly),
        (replace(NARROW, max_new_tokens=20), ()),
        (LONG, ("cat", "big")),
    ],
)
def test_the_host_waits_for_the_device_every_few_tokens_only(opened, sampling, stop):
    here = opened("cpu")
    sampling = replace(sampling, stop=stop)
    prompts = prompts_of(here)
    expected = here.generate(prompts, sampling, range(len(prompts)))
    with pretended() as device:
        there = opened("cuda")
        found = there.generate(prompts, sampling, range(len(prompts)))
    assert [c.ids.tolist() for c in found] == [c.ids.tolist() for c in expected]
    assert [c.stop_reason for c in found] == [c.stop_reason for c in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=NATS)
        assert len(one.kept_ids or ()) == len(other.kept_ids or ())
        for ids, same in zip(one.kept_ids or (), other.kept_ids or (), strict=True):
            np.testing.assert_array_equal(ids, same)
    every = decoding.LOOK_EVERY["cuda"]
    steps = device.replays[::2]  # then the choice of each token is replayed
    waited = [t for t, (a, b) in enumerate(itertools.pairwise(steps)) if a != b]
    assert len(steps) > every
    assert all((t + 2) % every == 0 for t in waited), f"waited after the tokens {waited}"


def test_a_card_that_is_named_becomes_the_present_one():
    with pretended() as device:
        assert chosen_device("auto").type == "cuda"
        assert device.present is None
        assert chosen_device("cuda:0") == device.present == torch.device("cuda", 0)


@pytest.mark.parametrize(("dtype", "key_heads"), [(torch.bfloat16, 1), (torch.float32, 2)])
def test_attention_without_a_mask_gets_as_many_keys_as_its_kernel_takes(dtype, key_heads, monkeypatch):
    """Flash attention lets heads share keys; what computes float32 does not, and all scores would be stored."""
    shapes, attend = [], packed.F.scaled_dot_product_attention
    q, k = torch.randn(3, 2, 5, 8).to(dtype), torch.randn(3, 1, 5, 8).to(dtype)

    def noted(q, k, *rest, **more):
        shapes.append(k.shape[1])
        return attend(q, k, *rest, **more)

    with pretended():
        monkeypatch.setattr(packed.F, "scaled_dot_product_attention", noted)
        found = packed._attention(q.to("cuda"), k.to("cuda"), k.to("cuda"), None, None)
    assert shapes == [key_heads]
    wanted = attend(q, k, k, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(found.held, wanted, rtol=0, atol=0.02 if dtype == torch.bfloat16 else 1e-5)


def test_a_capture_that_finds_no_memory_is_made_again_with_what_was_freed(opened, monkeypatch):
    begun, freed = [], []
    with pretended() as device:
        backend = opened("cuda")
        prompts = prompts_of(backend)
        begin = torch.cuda.CUDAGraph.capture_begin

        def lacking(graph, *args):
            begun.append(graph)
            if len(begun) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            begin(graph, *args)

        monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lacking)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(len(begun)))
        backend.generate(prompts, LONG, range(len(prompts)))
    assert freed == [1]
    assert len(device.replays) > 2 * decoding.LOOK_EVERY["cuda"]
    assert set(device.capture_modes) == {"thread_local"}


def test_a_step_that_was_captured_before_is_called_first_only_where_its_capture_fails(opened, monkeypatch):
    called, fails, call = [], [], graph.Captured._call
    monkeypatch.setattr(graph.Captured, "_call", lambda one: called.append(type(one).__name__) or call(one))
    with pretended():
        backend = opened("cuda")
        prompts, begin = prompts_of(backend), torch.cuda.CUDAGraph.capture_begin

        def failing(one, *args):
            if fails:
                raise RuntimeError(fails.pop())
            begin(one, *args)

        monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", failing)
        found = []
        for reason in ((), (), ("a kernel is not compiled",)):
            called.clear()
            fails.extend(reason)
            completions = backend.generate(prompts, replace(LONG, max_new_tokens=4), range(len(prompts)))
            found.append((called.count("_Step"), [completion.ids.tolist() for completion in completions]))
    assert [count for count, _ in found] == [1, 0, 1]
    assert found[0][1] == found[1][1] == found[2][1]


@pytest.mark.parametrize("overrides", [(), *weekly("model.lora_rank=4", "backend.args.weights=bf16")])
def test_a_run_in_bfloat16_starts_beside_another_and_multiplies_float32_in_tf32_in_its_work_only(opened, overrides):
    with pretended() as device:
        backends = [opened("cuda", "backend.precision=auto", *overrides) for _ in range(2)]
        assert [b.describe()["precision"] for b in backends] == ["bf16", "bf16"]
        assert device.rounded == 0
        for backend in backends:
            step(backend, scored_batch(backend, NARROW))
        assert device.rounded > 0
        before = device.rounded
        assert opened("cuda").describe()["decoder"] == "fast"
        assert device.rounded == before
        assert torch.backends.cuda.matmul.fp32_precision != "tf32"


@pytest.mark.parametrize("overrides", weekly("backend.args.weights=bf16", "model.lora_rank=4"))
def test_a_run_goes_on_from_its_checkpoint_with_all_its_state_on_the_device(opened, overrides, tmp_path):
    with pretended(any_order=False):
        first, second = (opened("cuda", "backend.precision=auto", *overrides) for _ in range(2))
        step(first, batch := scored_batch(first, NARROW))
        first.save(tmp_path)
        second.load(tmp_path)
        assert second.optimizer.state
        assert all(isinstance(x, Elsewhere) for s in second.optimizer.state.values() for x in s.values())
        for backend in (first, second):
            step(backend, batch)
        for one, other in zip(first.trainable().values(), second.trainable().values(), strict=True):
            assert torch.equal(one, other)


def test_a_tensor_of_the_cpu_among_those_of_the_device_is_noticed():
    with pretended() as device:
        there = torch.zeros(3, 2, device=torch.device("cuda", 0))
        assert there.new_ones(2).device.type == torch.arange(3, device=there.device).device.type == "cuda"
        for mistake in (
            lambda: there + torch.ones(2),
            lambda: there[torch.tensor([0, 1])],
            lambda: there.numpy(),
            lambda: torch.cat([there, torch.ones(1, 2)]),
        ):
            with pytest.raises(MixedDevicesError):
                mistake()
        assert device.waits == []
        assert there.sum().item() == 0.0
        assert not bool(there.any())
        assert there[there > 0].tolist() == []
        assert len(device.waits) == 4, "a number, a truth, an index of unknown size, a list"


def test_what_adds_by_atomics_adds_in_another_order_each_time_unless_that_is_asked_for():
    numbers, ids = torch.rand(500, 3), torch.zeros(500, dtype=torch.long)
    ways = {
        "index_add": lambda x, at: x.new_zeros(2, 3).index_add(0, at, x),
        "scatter_add": lambda x, at: x.new_zeros(2, 3).scatter_add(0, at[:, None].expand(-1, 3), x),
        "index_put": lambda x, at: x.new_zeros(2, 3).index_put((at,), x, accumulate=True),
        "embedding": lambda x, at: gradient_of_embedding(x, at),
    }
    with pretended():
        there, at = numbers.to("cuda"), ids.to("cuda")
        for name, way in ways.items():
            sums = [way(there, at).tolist() for _ in range(8)]
            assert len({str(found) for found in sums}) > 1, name
            np.testing.assert_allclose(sums[0][0], numbers.sum(0), rtol=1e-5, err_msg=name)
            with deterministic(True, there.device):
                assert way(there, at).tolist() == way(there, at).tolist(), name


def gradient_of_embedding(numbers, ids):
    table = numbers.new_zeros(2, 3).requires_grad_()
    torch.nn.functional.embedding(ids, table).backward(numbers)
    return table.grad


def test_products_are_rounded_to_ten_bits_where_the_switches_allow_tf32():
    x = torch.full((4, 1), 1.0 + 2.0**-11 + 2.0**-20)  # just over the middle between two numbers of TF32
    with pretended() as device:
        there, one = x.to("cuda"), torch.ones(1, 1, device="cuda")
        with full_float32():
            assert (there @ one).tolist() == x.tolist()
        with fast_float32():
            assert (there @ one).tolist() == [[1.0 + 2.0**-10]] * 4
            assert (there[:1] @ one).tolist() == x[:1].tolist(), "few rows take another kernel"
            assert (there.double() @ one.double()).tolist() == x.double().tolist()
        assert device.rounded == 1
    with pretended(tf32=False), fast_float32():
        assert (x.to("cuda") @ torch.ones(1, 1, device="cuda")).tolist() == x.tolist()


def test_autocast_casts_as_on_cuda_and_not_as_on_a_cpu():
    low, full = torch.bfloat16, torch.float32
    expected = {
        "linear": (lambda x: torch.nn.functional.linear(x, x), low),
        "matmul": (lambda x: x @ x, low),
        "softmax": (lambda x: torch.nn.functional.softmax(x.to(low), -1), full),
        "sum": (lambda x: x.to(low).sum(), full),
        "exp": (lambda x: x.to(low).exp(), full),
        "pow": (lambda x: x.to(low) ** 2, full),
        "layer_norm": (lambda x: torch.nn.functional.layer_norm(x.to(low), (3,)), full),
        "addcmul": (lambda x: torch.addcmul(x.to(low), x, x), full),
        "silu": (lambda x: torch.nn.functional.silu(x.to(low)), low),
        "mean": (lambda x: x.to(low).mean(), low),
        "in place": (lambda x: x.clone().addmm_(x, x), full),
        "double": (lambda x: x.double() @ x.double(), torch.float64),
    }
    with pretended():
        x = torch.ones(3, 3, device="cuda")
        with torch.autocast("cuda", low):
            assert {name: way(x).dtype for name, (way, _) in expected.items()} == {
                name: dtype for name, (_, dtype) in expected.items()
            }
        assert (x @ x).dtype == full


def test_every_operation_that_the_installed_torch_casts_on_cuda_has_a_policy():
    registered = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }
    # Beside the lists PyTorch refuses one by hand, and lists cuDNN's convolutions, which only others call.
    others = {"binary_cross_entropy", "cudnn_convolution", "cudnn_convolution_transpose"}
    assert registered - others == policies().keys()


# Place: how often the host waits there, in one call for 12 prompts of 10 tokens each, and in one update of 5 passes.
DRAWN = {
    "draw.decoder.prefill": 1,  # is anything padded?
    "draw.batch.decode": 1,  # which rows have ended, at a look before the last
    "draw.tokens.completions": 3,  # of rows that leave: tokens, log-probs, and whether they ended
    "draw.tokens.take": 6,  # what truncation left: three for every look, of 8 tokens
    "draw.tokens._stop": 2,  # tokens in which stop strings are looked for: one for every look
}
SCORED = {"backend._measure_micro_batches": 1}
UPDATED = {"masters.numbers_of": 1, "backend.step": 1, "masters.products_with_momentum": 1}  # losses, norm, cosine


@pytest.mark.parametrize("overrides", [(), *weekly("model.lora_rank=4")])
def test_these_are_the_places_where_the_host_waits_for_the_device(opened, overrides):
    sampling, several = replace(NARROW, stop=("zebra",)), ("backend.args.micro_batch_tokens=60",)
    with pretended() as device:
        backend = opened("cuda", *overrides, *several)
        prompts = prompts_of(backend) * 2
        device.waits.clear()
        backend.generate(prompts, sampling, range(len(prompts)))
        drawn = waits_of(device)
        step(backend, scored_batch(backend, NARROW, samples=2))
        batch = scored_batch(backend, NARROW, samples=2)
        device.waits.clear()
        backend.score(batch, NARROW, ALGORITHM.needs)
        assert waits_of(device) == SCORED
        step(backend, batch)
        assert waits_of(device) == UPDATED
    assert drawn == DRAWN


def waits_of(device):
    """Return how often the host waited in which place, and forget it."""
    found = Counter(wait.place.removeprefix("backends.torch.") for wait in device.waits)
    device.waits.clear()
    return found
