"""What `docs/protocol.md` shows is what the code reads and writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsworker import outcomes
from fsworker.protocol import layout, packing, segment
from fsworker.protocol.records import coding
from fsworker.protocol.segment import Segment

pytestmark = pytest.mark.unit

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def test_the_example_decodes_and_is_what_would_be_written() -> None:
    (dump,) = re.findall(r"```hex\n(.*?)```", TEXT, re.DOTALL)
    data = b"".join(bytes.fromhex(line[6:]) for line in dump.splitlines())
    found = segment.decode(data, segment.BATCH, "docs/protocol.md")
    assert found.meta == {"stream": "s", "timeout": None}
    assert found.values() == [[None, [1]], ["t7", [2], {"k": True}]]
    records = [packing.pack(value) for value in found.values()]
    assert segment.encode(Segment(segment.BATCH, found.meta, records)) == data
    assert f"length {len(data)} =" in TEXT and f"{data[27:23:-1].hex()}" in TEXT


def test_the_grammar_is_that_of_the_code() -> None:
    assert f"at most {layout.MAX_NAME} bytes" in TEXT
    for folder in layout.FOLDERS:
        assert f"`{folder}/" in TEXT, folder
    for path in (layout.MANIFEST, layout.MARKER, layout.LAUNCH_META, layout.EVENTS):
        assert f"`{path}`" in TEXT, path


def test_every_status_and_version_is_described() -> None:
    for status in outcomes.STATUSES:
        assert f"`{status}`" in TEXT, status
    assert f'`"{coding.FORMAT}"`' in TEXT
    assert f"{segment.MAX_BYTES >> 20} MiB" in TEXT
    assert f"major format version, {segment.MAJOR}" in TEXT
