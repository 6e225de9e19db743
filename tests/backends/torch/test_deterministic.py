"""Equal numbers from run to run on a GPU, as far as a CPU can show: all of a step has a deterministic way there."""

import os
import re

import numpy as np
import pytest

from steadyrl.backends.fsdp.plugin import Settings as FsdpSettings
from steadyrl.backends.fsdp.plugin import check as check_fsdp
from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from tests import needs
from tests.backends.ppo_batch import ALGORITHM, NARROW, scored_batch, step

torch = needs.package("torch")
needs.skip_without_packages("transformers", "peft", extra="torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from steadyrl.backends.torch import deterministic  # noqa: E402
from steadyrl.backends.torch.backend import TorchBackend  # noqa: E402
from tests.backends.torch.elsewhere import pretended  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
CUDA = torch.device("cuda", 0)
# What torch.use_deterministic_algorithms says fails with its flag on a GPU, and the start of the operators' names.
REFUSED = {
    "AvgPool3d": "avg_pool3d_backward", "AdaptiveAvgPool2d": "_adaptive_avg_pool2d_backward",
    "AdaptiveAvgPool3d": "_adaptive_avg_pool3d_backward", "AdaptiveMaxPool2d": "adaptive_max_pool2d_backward",
    "FractionalMaxPool2d": "fractional_max_pool2d_backward", "FractionalMaxPool3d": "fractional_max_pool3d_backward",
    "MaxPool3d": "max_pool3d_with_indices_backward", "MaxUnpool1d": "max_unpool", "MaxUnpool2d": "max_unpool",
    "MaxUnpool3d": "max_unpool", "interpolate": "upsample_", "ReflectionPad1d": "reflection_pad",
    "ReflectionPad2d": "reflection_pad", "ReflectionPad3d": "reflection_pad", "ReplicationPad1d": "replication_pad",
    "ReplicationPad2d": "replication_pad", "ReplicationPad3d": "replication_pad", "NLLLoss": "nll_loss",
    "CTCLoss": "_ctc_loss", "EmbeddingBag": "_embedding_bag", "put_": "put", "histc": "histc", "bincount": "bincount",
    "kthvalue": "kthvalue", "median": "median", "grid_sample": "grid_sampler", "cumsum": "cumsum",
    "scatter_reduce": "scatter_reduce", "resize_": "resize",
}  # fmt: skip


class Recorder(TorchDispatchMode):
    """Notes the operators that are called with numbers, whether the flag was set at each, and what the flag refuses."""

    def __init__(self):
        super().__init__()
        self.operators, self.flags, self.refused = set(), set(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.operators.add(name)
        self.flags.add(torch.are_deterministic_algorithms_enabled())
        whole = name == "cumsum" and not args[0].is_floating_point()  # refused of numbers that are rounded alone
        if not whole and name.startswith(tuple(REFUSED.values())):
            self.refused.add(name)
        return func(*args, **(kwargs or {}))


def test_the_list_of_operators_without_a_deterministic_way_is_the_one_that_torch_documents():
    text = torch.use_deterministic_algorithms.__doc__.split("RuntimeError` when ``mode=True``:")[1]
    documented = re.findall(r"\* :\w+:`torch\.([\w.]+)`", text.split("In addition")[0])
    assert len(documented) > 20
    assert {name.rpartition(".")[2] for name in documented} - set(REFUSED) == set()


@pytest.fixture
def opened(tiny_models, monkeypatch):
    monkeypatch.setenv(deterministic.WORKSPACE, "")

    def opened(*overrides, device="cpu"):
        settings = {
            "model": {"path": str(tiny_models["llama"])},
            "backend": {"device": device, "threads": 1, "precision": "fp32"},
            "rewards": {"length": 1.0},
        }
        return TorchBackend(config.resolve(settings, overrides), ALGORITHM)

    return opened


def recorded(opened, *overrides):
    """Sample, score and update once on a pretended device; return what was computed, the batch and the stats."""
    with pretended():
        backend = opened(*overrides, device="cuda")
        with Recorder() as recorder:
            batch = scored_batch(backend, NARROW, samples=2)
            stats = step(backend, batch)
    return recorder, batch, stats


@pytest.mark.parametrize("trained", ["model.lora_rank=0", pytest.param("model.lora_rank=4", marks=pytest.mark.weekly)])
def test_all_that_a_step_computes_on_a_gpu_has_a_deterministic_way(opened, trained):
    recorder, batch, stats = recorded(opened, "backend.args.deterministic=true", trained)
    assert recorder.refused == set()
    assert recorder.flags == {True}
    whole = {"mm", "index_copy_", "searchsorted", "sort", "index_add", "_fused_adamw_"}
    assert whole - recorder.operators == set(), "the step is not whole"
    assert not torch.are_deterministic_algorithms_enabled()
    plain, same_batch, same_stats = recorded(opened, trained)
    assert plain.refused == {"cumsum"}, "the sampler's running sums are what the flag would refuse"
    assert plain.flags == {False}
    np.testing.assert_array_equal(batch.tokens, same_batch.tokens)
    assert stats["grad_norm"] == pytest.approx(same_stats["grad_norm"], rel=1e-4)


def test_nothing_that_a_step_reads_is_memory_that_was_not_written(opened):
    """PyTorch then fills it with NaN; the setting spares that."""
    here, filled = opened(), opened()
    expected = step(here, scored_batch(here, NARROW, samples=2))
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(3).isnan().all()
        stats = step(filled, scored_batch(filled, NARROW, samples=2))
    finally:
        torch.use_deterministic_algorithms(False)
    for name, (total, count) in expected.items():
        assert stats[name] == (pytest.approx(total, rel=1e-4, abs=1e-4), count), name


def test_the_flags_of_the_process_are_as_before_also_where_work_failed():
    def flags():
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.backends.cudnn.benchmark,
        )

    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        before = flags()
        with pytest.raises(ZeroDivisionError), deterministic.deterministic(True, CUDA):
            assert flags() == (True, False, False, False)
            _ = 1 / 0
        assert flags() == before
        with deterministic.deterministic(False, CUDA), deterministic.deterministic(True, torch.device("cpu")):
            assert flags() == before
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False


def test_what_repeats_takes_no_kernel_that_only_warns(opened):
    """Attention adds in any order, with a warning, where a lack of deterministic kernels is not an error."""
    with pretended():
        backend = opened(device="cuda")
        with backend.repeating(), backend.working():
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        with backend.working():
            assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("width", [1, 127, 128, 129, 128 * 128 + 1])
def test_running_sums_by_products_are_those_of_numpy_and_never_fall(width):
    x = np.random.default_rng(width).random((3, width))
    sums = deterministic.sums_by_products(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(sums, x.cumsum(-1), rtol=width * 2**-52)
    assert (np.diff(sums) >= 0).all()


def test_a_run_says_whether_its_numbers_come_again(opened):
    backend = opened()
    assert backend.describe()["deterministic"] is True  # on a CPU
    backend.device = CUDA
    assert backend.describe()["deterministic"] is False
    backend = opened("backend.args.deterministic=true")
    backend.device = CUDA
    assert backend.describe()["deterministic"] is True


@pytest.mark.parametrize("before", [":16:8", ":4096:8"])
def test_a_workspace_that_is_deterministic_already_stays(monkeypatch, before):
    monkeypatch.setenv(deterministic.WORKSPACE, before)
    deterministic.prepare(CUDA, True)
    assert os.environ[deterministic.WORKSPACE] == before


@pytest.mark.parametrize("wanted", [False, True])
def test_the_first_product_finds_a_workspace_and_no_later_one_has_to_read_it(monkeypatch, wanted):
    monkeypatch.delenv(deterministic.WORKSPACE, raising=False)
    found, multiply = [], torch.mm

    def looking(*factors):
        found.append(os.environ.get(deterministic.WORKSPACE))
        return multiply(*factors)

    monkeypatch.setattr(torch, "mm", looking)
    with pretended():
        deterministic.prepare(CUDA, wanted)
        deterministic.prepare(torch.device("cpu"), wanted)
    assert found == [":4096:8"]
    assert deterministic.WORKSPACE not in os.environ


def test_a_workspace_that_the_user_chose_stays_unless_the_setting_asks_for_another(monkeypatch):
    monkeypatch.setenv(deterministic.WORKSPACE, ":64:1")
    deterministic.prepare(CUDA, False)
    assert os.environ[deterministic.WORKSPACE] == ":64:1"
    deterministic.prepare(CUDA, True)
    assert os.environ[deterministic.WORKSPACE] == ":4096:8"


def test_what_cannot_be_deterministic_is_refused():
    with pytest.raises(ConfigError, match="got the device 'mps'; set it to false"):
        deterministic.prepare(torch.device("mps"), True)
    with pytest.raises(ConfigError, match=r"sampler.engine = 'vllm', which samples in another process"):
        config.resolve(
            {"backend": {"args": {"deterministic": True}}, "sampler": {"engine": "vllm"}, "rewards": {"length": 1.0}}
        )
    (problem,) = check_fsdp(config.resolve({"rewards": {"length": 1.0}}), FsdpSettings(deterministic=True))
    assert problem.startswith("backend.args.deterministic = true holds on one device")


def test_activations_are_offloaded_only_where_they_are_checkpoints():
    args = {"activation_offload": True}
    for name in ("torch", "fsdp"):
        with pytest.raises(ConfigError, match="gradient_checkpointing = true beside activation_offload"):
            config.resolve({"backend": {"name": name, "args": args}, "rewards": {"length": 1.0}})
    config.resolve({"backend": {"args": {**args, "gradient_checkpointing": True}}, "rewards": {"length": 1.0}})
