"""The command line. Errors that a user can fix end in one line and exit code 2, never in a traceback."""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

import steadyrl
from steadyrl.cli.groups import Group
from steadyrl.cli.terminal import printable
from steadyrl.core.errors import ConfigError, SteadyError, users_errors

INTERRUPTED = 130  # exit code
_LONGEST_ERROR = 2000  # characters
_THREADS_S = 2.0  # for threads to end after an interrupt
_SIZE = re.compile("[1-9][0-9]{1,5}")  # columns or lines of a terminal in which a table can be read
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE)  # what writing to standard output may fail with


class Command(NamedTuple):
    """A command in the list of ``--help``: where it is, its heading, and what it does."""

    target: str
    panel: str
    help: str


_START, _TRAIN, _LOOK, _USE = "Start", "Train", "Look at runs", "Use the policy"
# The modules of all commands together take longer to load than most commands take to run, so the list says itself what
# a command does, and a module is loaded for its own command alone.
COMMANDS = {
    "new": Command("new:new_command", _START, "Write a config and a reward file for your own data."),
    "examples": Command("examples:examples_command", _START, "List the examples, or copy one of them here."),
    "task": Command("task:app", _START, "Check a task and its rewards before training."),
    "judge": Command("judge:judge_command", _START, "Measure an AI judge on known answers."),
    "preflight": Command("preflight:preflight_command", _START, "Try everything that a run needs on a few prompts."),
    "train": Command("run:train_command", _TRAIN, "Train a policy, evaluate it, and write the report."),
    "tune": Command("tune:tune_command", _TRAIN, "Find the learning rate of a config."),
    "study": Command("study:app", _TRAIN, "Run experiments with one changed setting each."),
    "runs": Command("runs:runs_command", _LOOK, "List runs: score before and after, verdict."),
    "doctor": Command("doctor:doctor_command", _LOOK, "Diagnose a run of any trainer from its log."),
    "web": Command("web:web_command", _LOOK, "Show runs in the browser, live."),
    "report": Command("report:report_command", _LOOK, "Write the report of a run, or of several runs."),
    "metrics": Command("metrics:metrics_command", _LOOK, "Write metrics as a table, or send them to a tracker."),
    "forecast": Command("forecast:forecast_command", _LOOK, "Forecast the last score of a run from the curve."),
    "compare": Command("compare:compare_command", _USE, "Compare two models on the same held-out problems."),
    "sample": Command("run:sample_command", _USE, "Ask the policy of a run."),
    "export": Command("export:export_command", _USE, "Write a policy as a Hugging Face model folder."),
    "serve": Command("export:serve_command", _USE, "Print the commands to serve an exported policy."),
}


class _Command(TyperCommand):
    """A command that says of an unknown option how settings are given, where it takes some."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the command line apart.

        Raises:
            ConfigError: An option is unknown, and none is like it.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # a class of click or of typer's own copy of it
            close = {*(getattr(error, "possibilities", ["?"]) or ())} - {"--help"}
            if close or "overrides" not in [parameter.name for parameter in self.params]:
                raise
            raise ConfigError(
                f"`{ctx.command_path}` has no option {getattr(error, 'option_name', '')}; a setting has its section in "
                f"front and no dashes, as in run.steps=200 or update.learning_rate=1e-4. `{ctx.command_path} -h` lists "
                "the options"
            ) from error


class Commands(Group):
    """The commands, each loaded when it is asked for; ``Any`` is a class of click or of typer's own copy of it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].target.partition(":")
        command = getattr(import_module(f"steadyrl.cli.{module}"), name)
        if not isinstance(command, typer.Typer):
            single_app = typer.Typer(add_completion=False)
            single_app.command(cmd_name, cls=_Command)(command)
            return typer.main.get_command(single_app)
        group = typer.main.get_command(command)
        group.name = cmd_name
        return group

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without loading any."""
        self._help_group().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return what may follow, without loading any command."""
        return self._help_group().shell_complete(ctx, incomplete)

    def _help_group(self) -> TyperGroup:
        commands: list[Any] = [
            TyperCommand(name, callback=None, help=command.help, rich_help_panel=command.panel)
            for name, command in COMMANDS.items()
        ]
        return TyperGroup(
            name=self.name,
            commands=commands,
            params=self.params,
            help=self.help,
            rich_markup_mode=self.rich_markup_mode,
        )


class _Printable(logging.Formatter):
    """What a reward or a model's own code logs may hold anything, as what it raises."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


app = typer.Typer(
    name="steadyrl",
    cls=Commands,
    help="RL fine-tuning for language models that stays steady, and says why when it does not.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        print(f"steadyrl {steadyrl.__version__}")
        raise typer.Exit


@app.callback()
def root_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """RL fine-tuning for language models that stays steady, and says why when it does not."""


def main() -> None:
    """Run the command line and exit with its code: 0 done, 1 not sound, 2 something to fix, 130 interrupted."""
    for name in ("stdin", "stdout", "stderr"):  # in this order, or a file of the run gets the number of a closed one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+", encoding="utf-8"))
    for name in ("COLUMNS", "LINES", "TERMINAL_WIDTH"):  # rich and typer take any number, and tables vanish in one of 0
        if not _SIZE.fullmatch(os.environ.get(name, "")):
            os.environ.pop(name, None)
    log_handler = logging.StreamHandler(sys.stderr)
    log_handler.setFormatter(_Printable())
    logging.basicConfig(level=logging.WARNING, handlers=[log_handler])
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a model wrote may hold characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    code: str | int | None = 0
    try:
        try:
            _require_folder()
            _require_text(sys.argv[1:])
            with users_errors():
                app(prog_name="steadyrl")  # also where it is called as python -m steadyrl
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()  # here and not when Python exits, so that a full disk also gives one line
    except SteadyError as error:
        code = _refuse(" ".join(str(error).splitlines()))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        code = _refuse(f"the output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # drops what still stands in the buffer
    if code == INTERRUPTED:
        _leave_hanging_threads()
    sys.exit(code)


def _leave_hanging_threads() -> None:
    # Those of a reward or an environment: Python would wait for them without end.
    deadline = time.monotonic() + _THREADS_S
    other_threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in other_threads:
        if not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                atexit._run_exitfuncs()  # temporary folders, browsers
                os._exit(INTERRUPTED)


def _require_folder() -> None:
    try:
        os.getcwd()  # in a folder that was removed no relative path means anything
    except FileNotFoundError as error:
        raise ConfigError("the current folder was removed; change to one that exists, and start again") from error


def _require_text(words: Sequence[str]) -> None:
    """Refuse settings in other bytes than UTF-8; a file may be called so. And no word: as a path it is this folder."""
    for word in words:
        if not word or (word.startswith("--") and word.endswith("=")):
            raise ConfigError(
                f"{word.rstrip('=') or 'an argument'} is empty, as a shell leaves a variable that is not set; give the "
                "file, folder or value that was meant"
            )
        if "=" in word and word.encode(errors="replace").decode() != word and not os.path.lexists(word):
            raise ConfigError(f"{word!a:.120} is not valid UTF-8; expected section.key=value as text in UTF-8")


def _refuse(text: str) -> int:
    if len(text) > _LONGEST_ERROR:  # a file or setting may hold anything, and an error repeats some of it
        text = f"{text[: _LONGEST_ERROR // 2]} ... {text[-_LONGEST_ERROR // 2 :]}"
    with suppress(OSError):  # a standard error that is closed has no reader
        print(f"error: {printable(text)}", file=sys.stderr, flush=True)
    return 2
