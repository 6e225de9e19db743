"""Kernels compiled for GPUs that are not there: what compiles is measured, and what does not is told."""

import importlib
from pathlib import Path

import pytest

from tests import needs

needs.skip_without_packages("torch", extra="torch")
triton = needs.package("triton", extra="test")
GPU = Path(__file__).parents[2] / "bench" / "gpu"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(GPU))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return importlib.import_module("compile_kernels")


@triton.jit
def of_no_power_of_two(x):
    triton.language.store(x, triton.language.sum(triton.language.arange(0, 3)))


def test_a_kernel_is_compiled_for_a_card_that_is_not_there(compiler):
    from steadyrl.backends.torch.kernels import layer_kernels

    gates, run = compiler.meta(2, 100), triton.runtime.jit.JITFunction.run
    (kernel,) = compiler.compiled(lambda: [layer_kernels.gate(gates, gates) for _ in range(2)], 90)
    assert (kernel.kernel, kernel.variants, kernel.spilled, kernel.errors) == ("_gate", 1, 0, [])
    assert kernel.fits and 8 <= kernel.registers <= 255
    assert compiler.table([kernel]).splitlines()[-1].endswith("| 0 | 0.0 | ok |")
    assert triton.runtime.jit.JITFunction.run is run


def test_what_does_not_compile_or_asks_for_too_much_memory_is_told(compiler, monkeypatch, capsys):
    (kernel,) = compiler.compiled(lambda: of_no_power_of_two[(1,)](compiler.meta(1)), 90)
    assert not kernel.fits and "power of 2" in kernel.errors[0]
    greedy = compiler.Compiled("greedy", 86, variants=1, shared=100 * 1024)
    assert not greedy.fits and compiler.Compiled("greedy", 90, variants=1, shared=100 * 1024).fits
    monkeypatch.setattr(compiler, "every_kernel", lambda *asked: [kernel, greedy])
    monkeypatch.setattr("sys.argv", ["compile_kernels.py", "--cards", "90"])
    assert compiler.main() == 1
    assert "**more than 99 KiB**" in capsys.readouterr().out
