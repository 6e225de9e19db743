import pytest
import typer

from steadyrl.cli.main import COMMANDS, app


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_loaded_by_its_name(name):
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), name)
    assert (command.name, bool(command.help)) == (name, True)


def test_a_command_that_does_not_exist_is_none():
    group = typer.main.get_command(app)
    assert group.list_commands(typer.Context(group)) == list(COMMANDS)
    assert group.get_command(typer.Context(group), "mend") is None
