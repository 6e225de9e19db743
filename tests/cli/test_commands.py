import os
import re
import subprocess
import sys

import pytest
import typer

import steadyrl
from steadyrl.cli.main import COMMANDS, app, main


@pytest.fixture
def command_line(monkeypatch, capsys, tmp_path):
    """Run the command line in an empty folder; return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["steadyrl", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_loaded_by_its_name(name):
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), name)
    assert (command.name, bool(command.help)) == (name, True)


def test_a_command_that_does_not_exist_is_none():
    group = typer.main.get_command(app)
    assert group.list_commands(typer.Context(group)) == list(COMMANDS)
    assert group.get_command(typer.Context(group), "mend") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trian", "config.toml"), "there is no command `steadyrl trian`; did you mean `steadyrl train`?"),
        (("init",), "there is no command `steadyrl init`; did you mean `steadyrl new`?"),
        (("list",), "there is no command `steadyrl list`; did you mean `steadyrl runs`?"),
        (("xyzzy",), "there is no command `steadyrl xyzzy`; `steadyrl -h` lists all commands"),
        (("task", "chek"), "there is no command `steadyrl task chek`; did you mean `steadyrl task check`?"),
        (("study", "xyzzy"), "there is no command `steadyrl study xyzzy`; `steadyrl study -h` lists all commands"),
    ],
)
def test_an_unknown_command_is_one_line_with_the_one_that_may_be_meant(command_line, words, message):
    assert command_line(*words) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "."), "'.' is a folder; expected a TOML file"),
        (
            ("task", "check", "absent.toml"),
            "there is no config file 'absent.toml'; expected a TOML file: `steadyrl new`",
        ),
        (("runs",), "there is no folder 'runs'; name a folder of runs"),
        (("examples", "serch"), "there is no example 'serch'; did you mean 'search'?"),
        (("new",), "'.' holds no data file"),
        (("new", "absent"), "there is no folder 'absent'; make it and put a data file into it, or add --data FILE"),
    ],
)
def test_what_is_not_there_is_one_line_with_the_way_out(command_line, words, message):
    code, printed, errors = command_line(*words)
    assert (code, printed, len(errors.splitlines())) == (2, "", 1)
    assert errors.startswith(f"error: {message}")


def test_the_version_is_that_of_the_package(command_line):
    assert command_line("--version") == (0, f"steadyrl {steadyrl.__version__}\n", "")


@pytest.mark.parametrize("words", [("-h",), *((name, "-h") for name in COMMANDS), ("task", "check", "-h")])
def test_minus_h_is_help_everywhere_and_fits_80_columns(command_line, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    code, printed, errors = command_line(*words)
    assert (code, errors) == (0, "")
    assert "Usage: steadyrl " in printed
    assert all(len(line) <= 80 for line in printed.splitlines())


@pytest.mark.parametrize("name", ["COLUMNS", "LINES", "TERMINAL_WIDTH"])
@pytest.mark.parametrize("size", ["0", "1", "-5", "abc", "8.0", "²", "9" * 5000])
def test_a_size_of_the_terminal_that_is_none_leaves_the_usual_one(command_line, monkeypatch, name, size):
    usual = command_line("examples")
    monkeypatch.setenv(name, size)
    assert command_line("examples") == usual and name not in os.environ
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, command_line("train", "-h")[1].splitlines())) == 40


def test_the_list_of_commands_is_whole_and_one_line_each(command_line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, printed, _ = command_line("--help")
    shown = re.findall(r"^│ ([a-z]+) +([A-Z].*[.]) +│$", printed, re.MULTILINE)
    assert dict(shown) == {name: entry.help for name, entry in COMMANDS.items()}
    assert "--install-completion" in printed and "--version" in printed


def test_help_loads_no_command():
    code = "import sys; from steadyrl.cli.main import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    loaded = set(re.findall(r"'([\w.]+)'", done.stdout.splitlines()[-1]))
    assert not loaded & {
        "numpy",
        "pydantic",
        "torch",
        "steadyrl.core.config",
        "steadyrl.cli.run",
        "steadyrl.loop.train",
    }


def test_the_shell_completes_commands_by_their_beginning():
    code = "from steadyrl.cli.main import main; main()"
    asked = {"_STEADYRL_COMPLETE": "complete_bash", "COMP_WORDS": "steadyrl ex", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True)
    assert done.stdout.split() == ["examples", "export"]
