"""Groups of commands: an unknown command ends in one line that names the command that may be meant."""

from __future__ import annotations

import difflib
from typing import Any

from typer.core import TyperGroup

from steadyrl.core.errors import ConfigError


class Group(TyperGroup):
    """A group of commands; ``Any`` is a class of click or of typer's own copy of it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the arguments begin with.

        Raises:
            ConfigError: There is none of that name.
        """
        name, names = args[0], self.list_commands(ctx)
        if name in names or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(name, names, n=1)
        group_path = ctx.command_path
        if not close and ctx.parent is None:
            from steadyrl.core.plugins import of_peers  # loads numpy

            close = [answer for answer in [of_peers("commands").get(name)] if answer]
        hint = f"did you mean `{group_path} {close[0]}`?" if close else f"`{group_path} -h` lists all commands"
        raise ConfigError(f"there is no command `{group_path} {name:.80}`; {hint}")
