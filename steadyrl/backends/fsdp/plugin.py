"""The backend ``fsdp``: one model on all ranks that torchrun started; see docs/scaling.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steadyrl.backends.fsdp.settings import FsdpSettings
from steadyrl.backends.fsdp.torchrun import noted, place
from steadyrl.core import plugins
from steadyrl.core.config import Config
from steadyrl.core.counting.count import begin
from steadyrl.core.errors import ConfigError
from steadyrl.core.protocols import Algorithm

if TYPE_CHECKING:
    from steadyrl.backends.fsdp.backend import FsdpBackend

Settings = FsdpSettings


def check(config: Config, settings: FsdpSettings) -> list[str]:
    """Return what is wrong with a config that trains on several ranks."""
    problems = []
    if config.backend.device.partition(":")[0] not in {"auto", "cpu", "cuda"}:
        problems.append(f"backend.device: got '{config.backend.device}'; expected 'auto', 'cuda' or 'cpu' with fsdp")
    if ":" in config.backend.device:
        problems.append(
            f"backend.device = '{config.backend.device}' is one GPU, and every rank has its own; set 'cuda'"
        )
    if settings.optimizer_bits != 32 or settings.quantize != "none" or settings.reference != "device":
        problems.append(
            "backend.args.optimizer_bits = 8, quantize = 'nf4' and reference = 'cpu' work with backend.name = 'torch' "
            "only; more ranks, or backend.args.cpu_offload = true, save memory with fsdp"
        )
    if settings.deterministic:
        problems.append(
            "backend.args.deterministic = true holds on one device; set it to false, or backend.name = 'torch' without "
            "torchrun"
        )
    rows, ranks = config.rollout.rollouts // config.update.minibatches, place().ranks
    if rows < ranks:
        problems.append(
            f"an update has {rows} rollouts for {ranks} ranks (rollout.prompts_per_step x rollout.samples_per_prompt / "
            "update.minibatches); start fewer ranks, or collect more"
        )
    return problems


def create(config: Config, algorithm: Algorithm) -> FsdpBackend:
    """Build the backend of a run on all ranks; this is rank 0.

    Raises:
        ConfigError: This is another rank, on which a command other than `train` was started.
        MissingExtraError: PyTorch or transformers is not installed.
        ModelError: The model cannot be trained with it.
        RankError: Another rank could not follow.
    """
    if place().rank > 0:
        raise ConfigError(
            "of all commands `steadyrl train` alone works on several ranks; start this one without torchrun"
        )
    begin("loading PyTorch and the model on all ranks")
    plugins.require("torch")
    from steadyrl.backends.fsdp.backend import lead  # needs torch, which reading a config does not

    return lead(config, algorithm)


def meet() -> None:
    """Meet the other ranks, before anything else is done that may take long; see ``Ranks.meet``."""
    if place().ranks == 1:
        return
    noted()  # before PyTorch is loaded, which takes long
    plugins.require("torch")
    from steadyrl.backends.fsdp.ranks import joined

    joined().meet()


def follow() -> int:
    """Do what rank 0 says until it ends; return the exit code of this process."""
    noted()
    plugins.require("torch")
    from steadyrl.backends.fsdp.backend import follow as follow_rank_0

    return follow_rank_0()
