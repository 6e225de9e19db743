"""The precision of products: what is asked for is used, and a slower choice is said."""

import logging
import math
from types import SimpleNamespace

import pytest

from tests import needs

torch = needs.package("torch")

from steadyrl.backends.torch import device  # noqa: E402
from steadyrl.backends.torch.read.products import product  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "used"), [("auto", None), ("fp32", None), ("bf16", torch.bfloat16)])
def test_on_a_cpu_only_those_who_ask_for_bfloat16_get_it(name, used):
    assert device.lower_precision(name, CPU) == used


@pytest.mark.parametrize(("capability", "used"), [((7, 5), None), ((8, 0), torch.bfloat16)])
def test_a_gpu_that_computes_bfloat16_as_float32_is_given_float32(monkeypatch, capability, used):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda card: SimpleNamespace(major=capability[0]))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda card: True)
    assert device.lower_precision("auto", torch.device("cuda")) == used
    assert device.lower_precision("bf16", torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize(("bf16_s", "said"), [(0.02, ["2.0 times"]), (0.005, []), (0.01, [])])
def test_bfloat16_that_is_slower_than_float32_is_said(monkeypatch, caplog, bf16_s, said):
    """Time stands still but for what each product takes: 0.01 s in float32."""
    clock = clock_of({torch.float32: 0.01, torch.bfloat16: bf16_s}, monkeypatch)
    monkeypatch.setattr(device.time, "perf_counter", clock)
    with caplog.at_level(logging.WARNING):
        device.lower_precision("bf16", CPU)
    assert len(caplog.records) == len(said)
    assert all(words in caplog.text for words in said)


def test_a_processor_without_blocks_in_bfloat16_multiplies_the_weights_as_they_are(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    linear, x = torch.nn.Linear(3, 2, dtype=torch.bfloat16), torch.ones(4, 3, dtype=torch.bfloat16)
    assert torch.equal(product(linear, 4, torch.bfloat16)(x), linear(x))
    assert not device.lays_blocks(torch.device("cuda"), torch.float32)


def clock_of(costs, monkeypatch):
    """Return a clock that moves by the cost of every product, and put it beside torch's own product."""
    passed, multiply = [0.0], torch.mm

    def counted(x, y):
        passed[0] += costs[x.dtype]
        return multiply(x, y)

    monkeypatch.setattr(torch, "mm", counted)
    return lambda: passed[0]


def test_kernels_that_do_not_run_are_tried_once_on_each_gpu_and_never_on_a_cpu(caplog):
    tried = []

    @device.optional_kernels
    def kernels(gpu):
        tried.append(str(gpu))
        if gpu.index == 0:
            raise RuntimeError("no compiler")
        return math

    devices = [torch.device(name) for name in ("cpu", "cuda:0", "cuda:0", "cuda:1")]
    assert [kernels(name) for name in devices] == [None, None, None, math]
    assert tried == ["cuda:0", "cuda:1"]
    assert [record.getMessage().endswith("take longer: no compiler") for record in caplog.records] == [True]
