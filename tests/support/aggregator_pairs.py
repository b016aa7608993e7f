"""Kills one of two running aggregators at one of its filesystem calls after the other. A program.

    python -m tests.support.aggregator_pairs TEMPLATE WORK SEED COUNT

TEMPLATE and WORK are as for `aggregator_kills`. Two aggregators are given a copy of the template at
once, each of which believes to be alone. The first is killed right before its n-th call that
touches the root, and a third one started in its place; the second goes on all the time. In every
other life the second one stops itself before one of its own calls, until the first one is dead, so
that it does not depend on the scheduler alone at what the two meet. The published bytes must be
those of an undisturbed run, and what was published when the first one died must be left alone.

COUNT lives are drawn by SEED from all n; 0 lives each n. Prints one JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys

from tests.support.aggregator_kills import Runs, fork, inodes, kill_me, live, nothing, stop_me


class Pairs(Runs):
    """What is found over all n."""

    killed = stopped = 0

    def calls(self) -> int:
        """How many calls an undisturbed life has."""
        root, (readable, writable) = self.copy("counted"), os.pipe()
        tell = lambda count: os.write(writable, str(count).encode())  # noqa: E731
        os.waitpid(fork(lambda: live(root, sys.maxsize, nothing, told=tell)), 0)
        os.close(writable)
        with open(readable, "rb") as file:
            return int(file.read())

    def one(self, n: int, m: int) -> None:
        """Kill one at its call n; the other stands before its call m until then, or (0) goes on."""
        root = self.copy("pair")
        other = fork(lambda: live(root, m or None, stop_me))
        there = not m or os.WIFSTOPPED(os.waitpid(other, os.WUNTRACED)[1])
        self.stopped += bool(m and there)
        status = os.waitpid(fork(lambda: live(root, n, kill_me)), 0)[1]
        self.killed += os.WIFSIGNALED(status)
        before = published_inodes(root)
        going = [fork(lambda: live(root, None, nothing))]
        if there:
            os.kill(other, signal.SIGCONT)
            going.append(other)
        ends = [os.waitpid(pid, 0)[1] for pid in going]
        if any(ends):
            self.bad.append(f"calls {n} and {m}: the others ended with {ends}")
        self.check(n, root, before)


def published_inodes(root: str) -> dict[str, int]:
    """`inodes`, while another one removes what is old."""
    while True:
        try:
            return inodes(root)
        except FileNotFoundError:
            continue


def main(template: str, work: str, seed: int, count: int) -> None:
    logging.disable()
    pairs, rng = Pairs(template, work), random.Random(seed)
    calls = pairs.calls()
    chosen = sorted(rng.sample(range(1, calls + 1), min(count or calls, calls)))
    for index, n in enumerate(chosen):
        pairs.one(n, rng.randint(1, calls) if index % 2 else 0)
    told = {"calls": calls, "lives": len(chosen), "killed": pairs.killed, "stopped": pairs.stopped}
    print(json.dumps({**told, "bad": pairs.bad[:20]}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
