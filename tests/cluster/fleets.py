"""Runs that tests share, since to start one takes emulated processors a minute."""

from __future__ import annotations

from dataclasses import dataclass

from tests.cluster.ground import WATCH, Run, restore
from tests.rigs.vmcluster import Cluster


@dataclass(frozen=True)
class Plan:
    """Where a run lies, and how it is started."""

    mount: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    def begin(self, cluster: Cluster, name: str) -> Run:
        run = Run(cluster, name, self.mount)
        try:
            run.start(*self.args, **dict(self.env))
        except BaseException:
            run.close()
            raise
        return run


PLANS = {
    # Nobody watches it until somebody asks for that.
    "fleet": Plan("/small"),
    # Two whole fleets would keep the head too busy to be quick to suspect anybody.
    "soft": Plan("/soft", ("--hosts", "node1", "--watch"), tuple(WATCH.items())),
}


class Fleets:
    """Runs by their names in `PLANS`: begun when first asked for, and anew once they ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._runs: dict[str, Run] = {}
        self._watched: set[str] = set()

    def get(self, name: str) -> Run:
        """A run that works, watched or not."""
        run = self._runs.get(name)
        if run is None or not run.begun:
            self._watched.discard(name)
            run = self._runs[name] = PLANS[name].begin(self._cluster, name)
        return run

    def watched(self, name: str) -> Run:
        """The run, with one watcher that is quick to suspect."""
        run = self.get(name)
        if "--watch" not in PLANS[name].args and name not in self._watched:
            run.watch()
            self._watched.add(name)
        return run

    def unwatched(self, name: str) -> Run:
        """The run, with nobody who could do something about its workers."""
        run = self.get(name)
        run.unwatch()
        self._watched.discard(name)
        return run

    def restore(self) -> None:
        """Put right whatever happened to machines."""
        for machine in self._cluster.workers.values():
            restore(machine)
        self._cluster.save()

    def end(self, name: str) -> None:
        """Stop a run; no process of it may be left anywhere."""
        run = self._runs.pop(name, None)
        if run is not None and run.begun:
            run.stop()
            run.close()

    def close(self) -> None:
        """End all that is left, without a verdict."""
        while self._runs:
            self._runs.popitem()[1].close()
