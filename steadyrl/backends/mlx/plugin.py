"""The backend ``mlx``: what a config must hold for it, and the one place that begins with MLX."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from typing import TYPE_CHECKING

from pydantic import Field

from steadyrl.backends.settings import GradientSettings
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.counting.count import begin
from steadyrl.core.protocols import Algorithm

if TYPE_CHECKING:
    from steadyrl.backends.mlx.backend import MlxBackend

OPENBLAS = "libopenblas.so.0"  # Debian: apt-get install libopenblas0
log = logging.getLogger(__name__)


class Settings(GradientSettings):
    """What MLX needs beside the settings that every backend has (see backends/mlx.md)."""

    free_on_resume = GradientSettings.free_on_resume | {"memory_gib"}  # the run may go on on another machine

    memory_gib: float = Field(0.0, ge=0, le=4096)
    """GiB of memory that MLX may use before it frees what it keeps for reuse and waits for running work. 0 uses MLX's
    own limit."""


def check(config: Config, settings: Settings) -> list[str]:
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


def faster_products(threads: int = 0) -> bool:
    """Let MLX multiply with the system's OpenBLAS, which is faster than its wheel's BLAS; return whether there is one.

    MLX looks ``cblas_sgemm`` up when it is first used, and takes the one that was loaded globally. On a Mac MLX uses
    Apple's own libraries, and nothing is done.

    Args:
        threads: Threads that OpenBLAS multiplies with; 0 leaves its own number.
    """
    if sys.platform != "linux":
        return False
    try:
        library = ctypes.CDLL(OPENBLAS, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    if threads:
        library.openblas_set_num_threads(threads)
    return True
