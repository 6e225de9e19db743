"""The command line. Errors that a user can fix end in one line and exit code 2, never in a traceback."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from contextlib import suppress

import typer

from steadyrl.cli import compare, doctor, judge, preflight, report, run, task
from steadyrl.cli.terminal import printable
from steadyrl.errors import SteadyError

app = typer.Typer(
    name="steadyrl",
    help="RL fine-tuning for language models that stays steady, and says why when it does not.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("preflight")(preflight.preflight_command)
app.command("train")(run.train_command)
app.command("report")(report.report_command)
app.command("doctor")(doctor.doctor_command)
app.command("compare")(compare.compare_command)
app.command("judge")(judge.judge_command)
app.command("sample")(run.sample_command)
app.add_typer(task.app, name="task")


def main() -> None:
    """Run the command line and exit with its code: 0 done, 1 not sound, 2 something to fix, 130 interrupted."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a model wrote may hold characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    code: str | int | None = 0
    try:
        try:
            app()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()  # here and not when Python exits, so that a full disk also gives one line
    except SteadyError as error:
        code = _refuse(" ".join(str(error).splitlines()))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        code = _refuse(f"the output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # drops what still stands in the buffer
    sys.exit(code)


def _refuse(text: str) -> int:
    with suppress(OSError):  # a standard error that is closed has no reader
        print(f"error: {printable(text)}", file=sys.stderr, flush=True)
    return 2
