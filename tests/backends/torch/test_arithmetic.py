"""Switches of the process for float32: what decides and what works sets them, and puts them back."""

import contextlib

import pytest

from tests import needs

torch = needs.package("torch")
needs.skip_without_packages("transformers", extra="torch")

from steadyrl.backends.torch.arithmetic import fast_float32, full_float32  # noqa: E402

BLAS = torch.backends.cuda.matmul
SPEED = {
    "as PyTorch begins": lambda: None,
    "TF32 by the older switch": lambda: setattr(BLAS, "allow_tf32", True),
    "the lowest precision": lambda: torch.set_float32_matmul_precision("medium"),
    "TF32 of all operations": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "TF32 of products": lambda: setattr(BLAS, "fp32_precision", "tf32"),
    "no TF32 of convolutions": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "reductions in bfloat16": lambda: setattr(BLAS, "allow_bf16_reduced_precision_reduction", False),
    "products in pieces": lambda: setattr(BLAS, "allow_bf16_reduced_precision_reduction", (False, False)),
}


def switches():
    """All that a process can be asked about its float32, and the errors of those who ask."""
    asked = {
        "older": torch.get_float32_matmul_precision,
        "cublas": lambda: BLAS.allow_tf32,
        "cudnn": lambda: torch.backends.cudnn.allow_tf32,
        "bf16": lambda: BLAS.allow_bf16_reduced_precision_reduction,
        "bf16 in pieces": lambda: BLAS.allow_bf16_reduced_precision_reduction_split_k,
        "fp16": lambda: BLAS.allow_fp16_reduced_precision_reduction,
        "all": lambda: torch.backends.fp32_precision,
        "products": lambda: BLAS.fp32_precision,
        "convolutions": lambda: torch.backends.cudnn.conv.fp32_precision,
        "recurrences": lambda: torch.backends.cudnn.rnn.fp32_precision,
        "products on a CPU": lambda: torch.backends.mkldnn.matmul.fp32_precision,
        "convolutions on a CPU": lambda: torch.backends.mkldnn.conv.fp32_precision,
    }
    answers = {}
    for name, ask in asked.items():
        try:
            answers[name] = ask()
        except RuntimeError:
            answers[name] = "a contradiction"
    return answers


@pytest.fixture(autouse=True)
def _switched_back():
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    for owner in (BLAS, torch.backends.mkldnn.matmul):
        owner.fp32_precision = "none"
    BLAS.allow_bf16_reduced_precision_reduction = True


@pytest.mark.parametrize("before", SPEED)
@pytest.mark.parametrize("way", [full_float32, fast_float32])
def test_switches_are_as_they_were_after_a_piece_of_work_and_after_its_error(before, way):
    SPEED[before]()
    expected = switches()
    with way():
        pass
    assert switches() == expected
    with contextlib.suppress(KeyError), way(), fast_float32(), full_float32():
        raise KeyError
    assert switches() == expected


@pytest.mark.parametrize("before", SPEED)
def test_full_float32_is_exact_whatever_was_switched_on(before):
    SPEED[before]()
    with full_float32():
        assert switches() | {"all": ""} == {
            "older": "highest", "cublas": False, "cudnn": False, "bf16": False, "bf16 in pieces": True, "fp16": False,
            "all": "", "products": "ieee", "convolutions": "ieee", "recurrences": "ieee", "products on a CPU": "ieee",
            "convolutions on a CPU": "ieee",
        }  # fmt: skip


@pytest.mark.parametrize("before", SPEED)
def test_fast_float32_is_tf32_on_a_gpu_and_exact_on_a_cpu_whatever_was_switched_off(before):
    SPEED[before]()
    with fast_float32():
        found = switches()
    assert (found["cublas"], found["products"], found["convolutions"]) == (True, "tf32", "tf32")
    assert (found["products on a CPU"], found["convolutions on a CPU"]) == ("ieee", "ieee")


def test_what_follows_a_switch_of_all_operations_follows_it_afterwards():
    torch.backends.fp32_precision = "tf32"
    with full_float32():
        assert BLAS.fp32_precision == "ieee"
    torch.backends.fp32_precision = "ieee"
    assert BLAS.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "ieee"


def test_full_float32_is_not_cast_by_an_autocast_around_it_which_casts_moved_weights_anew():
    linear, x = torch.nn.Linear(4, 4, bias=False), torch.full((1, 4), 1.001)
    doubled = 2.0 * (x.bfloat16() @ linear.weight.detach().bfloat16().t())
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x).dtype == torch.bfloat16
        with full_float32(), torch.no_grad():
            assert linear(x).dtype == torch.float32
            linear.weight.mul_(2.0)
        assert torch.equal(linear(x), doubled)
