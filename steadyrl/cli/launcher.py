"""The options that say where runs are made."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from steadyrl.core.errors import ConfigError, require_posix
from steadyrl.lab.launchers.command import Launcher, choose
from steadyrl.lab.study.file import Launch

LAUNCHER = typer.Option("--launcher", help="where runs are made: processes, ray, slurm, or an import path")
LAUNCHER_ARGS = typer.Option("--launcher-args", help="a setting of the launcher, as gpus=1; as many as you like")


def open_launcher(name: str, args: Sequence[str], at_once: int, file: Launch | None = None) -> Launcher | None:
    """Return what starts the runs, None for this process; the file's settings count for the launcher that it names.

    Raises:
        ConfigError: There is no such launcher, or a setting is wrong.
        MissingExtraError: It needs a package that is not installed.
    """
    require_posix("training")
    launch = file or Launch()
    name = name or launch.name or ("processes" if at_once > 1 else "")
    if name:
        return choose(name, launch.args if name == launch.name else {}, args, at_once)
    if args:
        raise ConfigError(f"--launcher-args {args[0]}: name the --launcher that it is for")
    return None
