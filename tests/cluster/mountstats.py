"""Requests that a machine has sent to the file server, as its kernel counts them."""

from __future__ import annotations

import re
from collections import Counter

from tests.cluster.ground import Run
from tests.rigs.vm import Machine


def requests(run: Run, machine: Machine) -> Counter[str]:
    """What the machine has asked the server on the mount of the run, by kind."""
    text = run.sh("cat /proc/self/mountstats", on=machine).stdout
    mounted = rf"mounted on {run.mount} with fstype nfs4(.*?)(?=\ndevice|\Z)"
    (part,) = re.findall(mounted, text, re.DOTALL)
    rows = re.findall(r"^\t\s*([A-Z_]+): (\d+) ", part.partition("per-op statistics")[2], re.M)
    return Counter({name: int(count) for name, count in rows if int(count)})


def told(counted: Counter[str], over: float) -> str:
    each = {name: round(n / over, 2) for name, n in counted.most_common() if n / over >= 0.05}
    return f"{counted.total() / over:.1f} {each}"
