"""The library that sends tasks: an Executor whose workers are those of a run.

`Client` is what users import; the other modules are its parts, a few of which `ctl` uses too.
"""

from __future__ import annotations

from fsworker.client.executor import Client

__all__ = ["Client"]
