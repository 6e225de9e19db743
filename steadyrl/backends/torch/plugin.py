"""The backend ``torch``: its own settings, and the one place that begins with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steadyrl.backends.torch.settings import TorchSettings as Settings
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.counting.count import begin
from steadyrl.core.protocols import Algorithm

if TYPE_CHECKING:
    from steadyrl.backends.torch.backend import TorchBackend

__all__ = ["Settings", "check", "create"]


def check(config: Config, settings: Settings) -> list[str]:
    """Return what is wrong with a config that trains in PyTorch."""
    problems = []
    if settings.quantize != "none" and not config.model.lora_rank:
        problems.append(
            f"backend.args.quantize = '{settings.quantize}' keeps weights that cannot be trained, and an adapter "
            "that can; set model.lora_rank, such as 16, or backend.args.quantize = 'none'"
        )
    if settings.deterministic and config.sampler.engine != "own":
        problems.append(
            f"backend.args.deterministic = true cannot hold for completions of sampler.engine = "
            f"'{config.sampler.engine}', which samples in another process; set sampler.engine = 'own', or "
            "backend.args.deterministic = false"
        )
    return problems


def create(config: Config, algorithm: Algorithm) -> TorchBackend:
    """Build the backend of a run.

    Raises:
        MissingExtraError: PyTorch or transformers is not installed.
        ModelError: The model cannot be trained with it.
    """
    begin("loading PyTorch and the model")
    plugins.require("torch")
    from steadyrl.backends.torch.backend import TorchBackend  # needs torch, which reading a config does not

    return TorchBackend(config, algorithm)
