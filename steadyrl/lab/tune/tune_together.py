"""A search for settings by several processes that a launcher starts: equal commands that share one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import DONE, read_json
from steadyrl.lab.jobs import Follow
from steadyrl.lab.launchers.command import Ended, Launcher, our_command
from steadyrl.lab.launchers.wait import endings
from steadyrl.lab.tune.tune import RESULT

INTERRUPTED = 130  # exit status of `steadyrl tune` after a signal


def tune_together(
    launcher: Launcher, processes: int, words: Sequence[str], folder: Path, follow: Follow
) -> dict[str, Any] | None:
    """Search by several processes; one that is cut from outside is started again if there is a new checkpoint.

    Args:
        launcher: Starts them.
        processes: How many.
        words: Of the command that each of them is, as given to `steadyrl`.
        folder: Of the search, on a file system that all machines see.
        follow: Follows the search, and may stop it.

    Returns:
        What result.json holds; None where ``follow.stop`` ended the search.

    Raises:
        ConfigError: The launcher cannot start them.
        RunError: None of them came to an end.
        EngineError: The launcher's scheduler does not answer any more.
    """
    logs = folder / "logs"
    names = [f"tune-{number}" for number in range(processes)]
    commands = {name: our_command(name, words, logs) for name in names}
    shown, ended, running = "", [], set(commands)
    saved = dict.fromkeys(commands, _checkpoints(folder))

    def look() -> None:
        nonlocal shown
        line = f"{len(list((folder / 'runs').glob('*')))} runs begun"
        if line != shown:
            follow.note(line)
            shown = line

    follow.note(f"{processes} processes share the search; what they say is in {logs}")
    launcher.start(list(commands.values()))
    for ending in endings(launcher, running, follow.stop, look):
        count = _checkpoints(folder)
        if _is_cut(ending) and count > saved[ending.name] and not follow.stop():
            follow.note(f"{ending.name}: cut ({ending.reason}); it is started again")
            saved[ending.name] = count
            running.add(ending.name)
            launcher.start([commands[ending.name]])
        else:
            ended.append(ending)  # what it had begun is free for the others
    if any(ending.code == 0 for ending in ended):
        return read_json(folder / RESULT)
    if follow.stop():
        return None
    why = commands[ended[0].name].error(ended[0]) or ended[0].reason
    raise RunError(f"no process came to the end of the search: {why}; see {logs}, or start it again to go on")


def _is_cut(ending: Ended) -> bool:
    """Return whether a process was ended from outside: by a signal, or by one that it answered by saving."""
    return ending.code is None or ending.code < 0 or ending.code == INTERRUPTED


def _checkpoints(folder: Path) -> int:
    """Return how many checkpoints there are in the folder of a search; without a new one, a process is cut again."""
    return len(list(folder.glob(f"runs/*/*/checkpoints/*/{DONE}")))
