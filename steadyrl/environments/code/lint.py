"""What ruff objects to in programs: many of them in one call, none of them run.

ruff reads a program and never executes it. It is called without any settings of its surroundings, on files in a folder
of their own that is gone afterwards.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.errors import DataError, MissingExtraError
from steadyrl.core.rundir import write_text
from steadyrl.core.scratch import scratch_folder

# Rules that find mistakes and clumsiness; layout, naming and documentation are left alone, as is what a checker of
# style would want of a whole project.
RULES = ("E7", "E9", "F", "B", "C4", "PIE", "SIM", "PLE", "PLW", "RUF", "UP")
IGNORED = ("RUF001", "RUF002", "RUF003", "B905", "UP006", "UP007", "UP035")
LONGEST = 100_000  # characters: a longer program is not read
_TIMEOUT_S = 60.0


def find_ruff() -> str:
    """Return the path of ruff's program, beside this Python or on the PATH.

    Raises:
        MissingExtraError: It is not installed.
    """
    beside = Path(sys.executable).with_name("ruff")
    path = str(beside) if beside.is_file() else shutil.which("ruff")
    if path is None:
        raise MissingExtraError(
            "task.args.lint = 'ruff' needs the program ruff, which is not installed; install it with: pip install "
            "'steadyrl[code]', or set task.args.lint = 'off'"
        )
    return path


def lint(ruff: str, programs: Sequence[str]) -> list[list[str]]:
    """Return ruff's objections to each program, one line each, by line number.

    Args:
        ruff: See ``find_ruff``.
        programs: Python source; what is no Python has one objection, the syntax error.

    Raises:
        DataError: ruff itself failed.
    """
    if not programs:
        return []
    with scratch_folder() as folder:
        names = [f"p{number}.py" for number in range(len(programs))]
        for name, text in zip(names, programs, strict=True):
            # Lone surrogates cannot be written; ruff is shown a question mark in their place.
            write_text(folder / name, text[:LONGEST].encode("utf-8", "replace").decode("utf-8"))
        by_name: dict[str, list[str]] = {name: [] for name in names}
        for finding in _run(ruff, str(folder)):
            row, code = finding["location"]["row"], finding["code"] or "syntax"
            line = f"line {row}: {code} {finding['message'].splitlines()[0]}"
            by_name[Path(finding["filename"]).name].append(line)
    return [by_name[name] for name in names]


def _run(ruff: str, folder: str) -> list[dict[str, Any]]:
    command = [
        ruff, "check", "--isolated", "--no-cache", "--exit-zero", "--quiet", "--output-format", "json",
        "--target-version", "py311", "--select", ",".join(RULES), "--ignore", ",".join(IGNORED),
        "--ignore-noqa", folder,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        findings: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        error_lines = str(getattr(error, "stderr", "") or error).strip().splitlines() or ["nothing"]
        raise DataError(f"ruff could not read the answers: {error_lines[-1]}; set task.args.lint = 'off'") from error
    return sorted(findings, key=lambda finding: (finding["location"]["row"], finding["location"]["column"]))
