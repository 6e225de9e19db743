"""How float32 is multiplied: as float32 where a comparison decides something, in TF32 where a run works in bfloat16.

PyTorch's switches for it belong to the process, and a library, another backend or a user's script may have turned them.
So whatever decides or works here sets all of them and puts them back: nothing relies on what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch

_ANY: Any = torch.backends  # whose switches its types lack
_PRECISION = "fp32_precision"
_REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@contextmanager
def full_float32() -> Iterator[None]:
    """Multiply float32 as float32 on every device; also a decorator.

    For what decides by comparing two computations: TF32 alone puts log-probs 1e-3 nats apart, as a wrong model does.
    """
    with _switched(tf32=False):
        yield


@contextmanager
def fast_float32() -> Iterator[None]:
    """Let a GPU multiply float32 in TF32, whose inputs are exact where they come from bfloat16; also a decorator."""
    with _switched(tf32=True):
        yield


def wide_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the product [n, m] in float32 of matrices [n, k] and [k, m], both in float32 or in one lower type."""
    if a.dtype == torch.float32:
        return torch.mm(a, b, out=out)
    if _widens(a.device):
        return torch.mm(a, b, out_dtype=torch.float32, out=out)
    return torch.mm(a.float(), b.float(), out=out)  # exact in TF32, too, which has more bits than bfloat16


def add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, keep: bool) -> None:
    """Add the product of two matrices to ``total`` [n, m] in float32, or put it there; see ``wide_product``."""
    if a.dtype == torch.float32:
        total.addmm_(a, b, beta=float(keep))
    elif _widens(a.device):
        torch.addmm(total, a, b, out_dtype=torch.float32, beta=float(keep), out=total)
    else:
        total.addmm_(a.float(), b.float(), beta=float(keep))


@cache
def _widens(device: torch.device) -> bool:
    """Return whether products of bfloat16 are given and added up in float32: on CUDA, of late."""
    x, total = torch.ones(16, 16, dtype=torch.bfloat16, device=device), torch.zeros(16, 16, device=device)
    try:
        torch.mm(x, x, out_dtype=torch.float32, out=total)
        torch.addmm(total, x, x, out_dtype=torch.float32, out=total)
    except (TypeError, RuntimeError):
        return False
    return True


@contextmanager
def _switched(tf32: bool) -> Iterator[None]:
    # Owner, name and value in the order of setting: older switches turn the newer ones of PyTorch 2.9 as well.
    blas, gpu, cpu = _ANY.cuda.matmul, _ANY.cudnn, _ANY.mkldnn
    switches: list[tuple[Any, str, Any]] = [(gpu, "allow_tf32", tf32), *((blas, name, tf32) for name in _REDUCTIONS)]
    if hasattr(torch.backends, _PRECISION):
        switches += [(owner, _PRECISION, "tf32" if tf32 else "ieee") for owner in (blas, gpu.conv, gpu.rnn)]
        switches += [(owner, _PRECISION, "ieee") for owner in (cpu.matmul, cpu.conv, cpu.rnn)]
    older, before = _read(torch.get_float32_matmul_precision, "highest"), [_setting(*switch[:2]) for switch in switches]
    cast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    try:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        for owner, name, value in switches:
            setattr(owner, name, value)
        with ExitStack() as exact:
            for device in cast:
                exact.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        torch.set_float32_matmul_precision(older)
        for (owner, name, _), value in zip(switches, before, strict=True):
            setattr(owner, name, value)
        if cast:  # of weights that may have moved in here
            torch.clear_autocast_cache()


def _setting(owner: Any, name: str) -> Any:
    """Return what sets a switch to what it is now."""
    value = _read(lambda: getattr(owner, name), True)
    if name == _PRECISION:  # equal to that of all operations of its kind of device: it follows it
        kind = torch.backends.mkldnn if getattr(owner, "backend", "") == "mkldnn" else torch.backends.cudnn
        return "none" if value == kind.fp32_precision else value
    split = getattr(owner, f"{name}_split_k", None)  # since PyTorch 2.10 the second half of a switch
    return value if split is None else (value, split)


def _read(older: Callable[[], Any], default: Any) -> Any:
    try:
        return older()
    except RuntimeError:  # a newer switch contradicts it and is what counts: nobody has turned the older one
        return default
