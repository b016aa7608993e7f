"""`fedavg run`: the aggregator, until it is told to end."""

from __future__ import annotations

import logging
import threading

import click


@click.command()
@click.argument("groups", nargs=-1, metavar="[GROUP...]")
@click.option("--root", metavar="DIR", help="Run root [default: FLEET_ROOT].")
@click.option(
    "--poll",
    type=click.FloatRange(0.05, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--threads", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option(
    "--until-finished", is_flag=True, help="End with 0 once every group has had its last round."
)
def command(
    groups: tuple[str, ...], root: str | None, poll: float, threads: int, until_finished: bool
) -> int:
    """Merge the rounds of a run's groups as uploads come in, until TERM or Ctrl-C.

    All groups of the run, also those that are made later, or the GROUPs that are named, which are
    waited for; with --until-finished they must be there (exit code 3). A second
    one stands by and takes over when the first one ends. It may be killed at any moment: the next
    one goes on, and publishes the same bytes.
    """
    from fedavg.aggregator import Aggregator, leadership, refuse_absent  # lazily: imports torch
    from fedavg.roots import open_root
    from fsworker.protocol import federation

    logging.getLogger("fedavg").setLevel(min(logging.INFO, logging.getLogger().level))
    store, stop = open_root(root), threading.Event()
    for group in groups:
        federation.check_name(group)  # one that cannot be would be waited for for ever
    if until_finished:
        refuse_absent(store, groups, "submit its jobs first, or leave out --until-finished")
    aggregator = None
    try:
        with leadership(store, stop, poll) as alone:
            aggregator = Aggregator(store, groups, alone=alone, threads=threads)
            aggregator.run(stop, poll=poll, until_finished=until_finished)
    except KeyboardInterrupt:
        if aggregator is not None:
            aggregator.beat(stopped=True)
    return 0
