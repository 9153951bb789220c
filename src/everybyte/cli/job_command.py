"""The click command behind `train` and `serve`: knows foreign flags, answers wrong ones by their meaning, and shows its help in groups."""

from __future__ import annotations

from typing import Any

import click

from everybyte.cli.foreign import rewritten, unknown_flag
from everybyte.job.flags import MORE, TABLES
from everybyte.report.language import said

OUTPUT = "Output"
"""Heading of what is no flag of the job."""


class JobCommand(click.Command):
    """A command whose options are the flags of a job. `purpose` is `train` or `serve`."""

    def __init__(self, *args: Any, purpose: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.purpose = purpose

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, in everybody's words."""
        try:
            return super().parse_args(ctx, rewritten(args, self.purpose))
        except click.NoSuchOption as error:
            raise click.UsageError(unknown_flag(error.option_name, self.purpose), ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The flags under their headings."""
        headings = dict.fromkeys([*(flag.group for flag in TABLES[self.purpose] if flag.group != MORE), MORE])
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in headings}
        group_of = {flag.name: flag.group for flag in TABLES[self.purpose]}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                group = next((group_of[name] for name in parameter.opts if name in group_of), OUTPUT)
                groups.setdefault(group, []).append(record)
        for group, rows in groups.items():
            with formatter.section(said(group)):
                formatter.write_dl(rows, col_max=26)
