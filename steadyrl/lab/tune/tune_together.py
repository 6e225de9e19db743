"""A search for settings by several processes that a launcher starts: equal commands that share one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import read_json
from steadyrl.lab.jobs import Follow
from steadyrl.lab.launchers.command import Ended, Launcher, our_command
from steadyrl.lab.launchers.wait import wait
from steadyrl.lab.tune.tune import RESULT


def tune_together(
    launcher: Launcher, processes: int, words: Sequence[str], folder: Path, follow: Follow
) -> dict[str, Any] | None:
    """Search by several processes.

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
    ended: list[Ended] = []
    shown = ""

    def look() -> None:
        nonlocal shown
        line = f"{len(list((folder / 'runs').glob('*')))} runs begun"
        if line != shown:
            follow.note(line)
            shown = line

    def again(ending: Ended) -> bool:
        ended.append(ending)  # what it had begun is free for the others
        return False

    follow.note(f"{processes} processes share the search; what they say is in {logs}")
    launcher.start(list(commands.values()))
    wait(launcher, commands, follow.stop, look, again)
    if any(ending.code == 0 for ending in ended):
        return read_json(folder / RESULT)
    if follow.stop():
        return None
    first = ended[0]
    why = commands[first.name].error(first) or first.reason
    raise RunError(f"no process came to the end of the search: {why}; see {logs}, or start it again to go on")
