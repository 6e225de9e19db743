"""The backend ``mlx``: what a config must hold for it, and the one place that begins with MLX."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from steadyrl.backends.mlx.blas import faster_products
from steadyrl.backends.mlx.settings import MlxSettings
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.counting.count import begin
from steadyrl.core.protocols import Algorithm

if TYPE_CHECKING:
    from steadyrl.backends.mlx.backend import MlxBackend

log = logging.getLogger(__name__)

Settings = MlxSettings


def check(config: Config, settings: MlxSettings) -> list[str]:
    """Return what is wrong with a config that trains in MLX."""
    problems = []
    if config.backend.device not in {"auto", "cpu", "gpu"}:
        problems.append(
            f"backend.device: got '{config.backend.device}'; expected 'auto', 'cpu' or 'gpu' with backend.name = 'mlx'"
        )
    if config.model.trust_remote_code:
        problems.append(
            "model.trust_remote_code = true has no effect with backend.name = 'mlx', which runs no code of a model "
            "folder; set it to false"
        )
    return problems


def create(config: Config, algorithm: Algorithm) -> MlxBackend:
    """Build the backend of a run.

    Raises:
        MissingExtraError: MLX is not installed.
        ModelError: The model cannot be trained with it.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would advise to install PyTorch
    if not faster_products(config.backend.threads) and config.backend.threads:
        log.warning("backend.threads = %d has no effect here: MLX manages its own threads", config.backend.threads)
    begin("loading MLX and the model")
    plugins.require("mlx.core")
    plugins.require("mlx_lm")
    from steadyrl.backends.mlx.backend import MlxBackend  # needs mlx, which reading a config does not

    return MlxBackend(config, algorithm)
