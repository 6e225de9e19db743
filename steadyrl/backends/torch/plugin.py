"""The backend ``torch``: its own settings, and the one place that begins with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steadyrl import plugins
from steadyrl.backends.settings import GradientSettings as Settings
from steadyrl.config import Config
from steadyrl.protocols import Algorithm

if TYPE_CHECKING:
    from steadyrl.backends.torch.backend import TorchBackend

__all__ = ["Settings", "create"]


def create(config: Config, algorithm: Algorithm) -> TorchBackend:
    """Build the backend of a run.

    Raises:
        MissingExtraError: PyTorch or transformers is not installed.
        ModelError: The model cannot be trained with it.
    """
    plugins.require("torch")
    from steadyrl.backends.torch.backend import TorchBackend  # needs torch, which reading a config does not

    return TorchBackend(config, algorithm)
