"""What a client has sent to its stream and read from it, for whoever audits the root.

A batch that is nowhere leaves no trace of its own. Only who sent it knows that it was there, so the
client leaves its numbers beside its results.
"""

from __future__ import annotations

from dataclasses import dataclass

from fsworker.protocol.records.run import _Record


@dataclass(frozen=True)
class StreamCounters(_Record):
    """The counters of one incarnation of a client; `outbox/<stream>/.counters~<inc>.json`.

    Once `settled`, the client is over and has written its last: from then on every batch that was
    submitted and not read is pending, claimed or committed. Until then the numbers are of a while
    ago. A client whose every batch was read removes its counters.
    """

    stream: str
    incarnation: str
    submitted: int
    read: int
    submitted_tasks: int = 0
    read_tasks: int = 0
    settled: bool = False
