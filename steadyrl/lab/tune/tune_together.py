"""A search for settings by several processes that a launcher starts: equal commands that share one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrl.core.errors import RunError
from steadyrl.core.rundir import DONE, read_json
from steadyrl.lab.elsewhere import End, make_elsewhere
from steadyrl.lab.jobs import Follow
from steadyrl.lab.launchers.command import Command, Ended, Launcher, our_command
from steadyrl.lab.tune.tune import RESULT

INTERRUPTED = 130  # exit status of `steadyrl tune` after a signal


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
    logs, notes = folder / "logs", [f"{processes} processes share the search; what they say is in {folder / 'logs'}"]
    commands = {name: our_command(name, words, logs) for name in (f"tune-{number}" for number in range(processes))}
    follow.note(notes[0])

    def note(text: str) -> None:
        if text not in notes:
            notes.append(text)
            follow.note(text)

    ends = make_elsewhere(launcher, commands, lambda name: _Part(commands[name], folder), replace(follow, note=note))
    if any(state == "done" for state, _ in ends.values()):
        return read_json(folder / RESULT)
    if follow.stop():
        return None
    why = next(why for _, why in ends.values())
    raise RunError(f"no process came to the end of the search: {why}; see {logs}, or start it again to go on")


class _Part:
    """What a process does of a search. What it had begun when it was lost is free for the others."""

    def __init__(self, command: Command, folder: Path) -> None:
        self._command, self._folder = command, folder
        self._saved = self._checkpoints()

    def _checkpoints(self) -> int:
        return len(list(self._folder.glob(f"runs/*/*/checkpoints/*/{DONE}")))

    @property
    def has_saved(self) -> bool:
        return self._checkpoints() > self._saved

    def report(self, follow: Follow) -> None:
        follow.note(f"{len(list(self._folder.glob('runs/*')))} runs begun")

    def end(self, ended: Ended) -> End:
        if ended.code == 0:
            return "done", "finished"
        cut = ended.code is None or ended.code < 0 or ended.code == INTERRUPTED
        return "cut" if cut else "failed", self._command.error(ended) or ended.reason
