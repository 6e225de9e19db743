"""The command line. Errors that a user can mend end in one line and exit code 2, never in a traceback."""

from __future__ import annotations

import logging
import sys

import typer

from steadyrl.cli import compare, doctor, judge, preflight, report, run, task
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
    """Run the command line and exit with its code: 0 done, 1 not sound, 2 something to mend, 130 interrupted."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        app()
    except SteadyError as error:
        print("error:", " ".join(str(error).split("\n")), file=sys.stderr)
        sys.exit(2)
