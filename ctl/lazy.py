"""Groups whose commands are the files of a folder, each imported when it is called.

Login nodes make every import slow, and commands are called from scripts in a loop. So a group knows
its commands by the names of their files, and what they are for by reading their source. A folder
with an `__init__.py` is a group below, made the same way.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

import click

from ctl.session import Session

_GROUP = "__init__.py"
_SUMMARY = re.compile(r'@click\.(?:command|group).*?\ndef .*?"""(.*?)(?:\n\s*\n|""")', re.DOTALL)


class LazyGroup(click.Group):
    """A group whose commands are the files of `folder`, the modules of `package`."""

    def __init__(self, *args: Any, folder: str, package: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.folder, self._package = folder, package

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, without importing one."""
        names = (name for name in os.listdir(self.folder) if not name.startswith(("_", ".")))
        return sorted(
            name.removesuffix(".py").replace("_", "-")
            for name in names
            if name.endswith(".py") or os.path.isfile(os.path.join(self.folder, name, _GROUP))
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that was named."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{self._package}.{cmd_name.replace('-', '_')}")
        command = next(v for v in vars(module).values() if isinstance(v, click.Command))
        command.name = cmd_name
        add_common(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the ones that are near."""
        import difflib  # lazily: only a typing error needs it

        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            hint = f"did you mean {near[0]}?" if near else f"see {ctx.command_path} --help"
            raise click.UsageError(f"there is no command {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the first sentence of their help, read from their source."""
        rows = [(name, self.summary(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def summary(self, name: str) -> str:
        """The first sentence of a command's help."""
        path = os.path.join(self.folder, name.replace("-", "_"))
        path = os.path.join(path, _GROUP) if os.path.isdir(path) else path + ".py"
        with open(path, encoding="utf-8") as file:
            found = _SUMMARY.search(file.read())
        text = " ".join(found[1].split()) if found else ""
        return text.split(". ")[0].rstrip(".")


def add_common(command: click.Command) -> None:
    """Give a command the options that are valid before it, so that their place is free."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_common(below)
    taken = {flag for p in command.params for flag in p.opts}
    for option in common_options():
        if not taken.intersection(option.opts):
            command.params.append(option)


def common_options() -> list[click.Option]:
    """The options that are valid before and behind every command."""

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.find_object(Session), param.name or "", value)

    return [
        click.Option(
            ["--config", "config_path"],
            metavar="FILE",
            expose_value=False,
            callback=keep,
            help="Read this fleet.toml.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=keep,
            help="Log everything, and show tracebacks.",
        ),
    ]
