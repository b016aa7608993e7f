"""Names: whatever users call things stays in its folder, and what is not ours is passed over."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsworker.protocol import layout
from fsworker.protocol.layout import Outcome, Owner, Token, members

pytestmark = pytest.mark.unit

ODD = json.loads((Path(__file__).parents[1] / "data" / "manifest_odd.json").read_bytes())
INC, CLIENT = "0123456789ab", "c0ffee00c0de"
BATCH = layout.batch_id("s", CLIENT, 7)
SAFE = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9_.%-]*")

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
incarnations = st.from_regex(r"[0-9a-f]{12}", fullmatch=True)
numbers = st.integers(0, 10**10 - 1)
batches = st.builds(layout.batch_id, names, incarnations, numbers)
tokens = st.builds(Token, batches, numbers, numbers, numbers)
owners = st.builds(Owner, names, incarnations)
outcomes = st.builds(Outcome, batches, numbers, incarnations)
HOSTILE = [
    "..",
    ".",
    "a/../../b",
    "/etc/passwd",
    ".hidden",
    "~",
    "~root",
    "a~b",
    "%",
    "%2F",
    "%00",
    "a\0b",
    "a\nb",
    " ",
    "-rf",
    "x.done",
    "x.result",
    "con",
    "é",
    "中文",
    "$HOME",
    "run 50%done",
    *(str(t["id"]) for t in ODD["tasks"] if t["id"] != ""),
    *ODD["hosts"],
]


@given(names, st.booleans())
def test_every_name_comes_back(name: str, dots: bool) -> None:
    part = layout.encode(name, dots=dots)
    assert SAFE.fullmatch(part) and len(part) <= layout.MAX_NAME
    assert layout.decode(part, partial(layout.encode, dots=dots)) == name


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("dots", [False, True])
def test_hostile_names_stay_one_visible_part_of_a_path(name: str, dots: bool) -> None:
    part = layout.encode(name, dots=dots)
    assert SAFE.fullmatch(part), part
    assert "~" not in part and not layout.is_foreign(part)
    assert dots or "." not in part
    assert layout.decode(part, partial(layout.encode, dots=dots)) == name


def test_unlike_names_stay_unlike() -> None:
    parts = [layout.encode(name) for name in HOSTILE]
    assert len(set(parts)) == len(set(HOSTILE))
    assert layout.encode("x") != layout.encode("X")
    assert layout.encode("7") == layout.encode(str(7))


@given(names, names)
def test_no_two_names_have_one_encoding(one: str, other: str) -> None:
    assert (layout.encode(one) == layout.encode(other)) == (one == other)


def test_names_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        layout.encode("")
    assert layout.encode("x" * layout.MAX_NAME)
    with pytest.raises(ValueError, match="takes 161 bytes, 160 is the limit"):
        layout.encode("x" * (layout.MAX_NAME + 1))
    with pytest.raises(ValueError, match="600 bytes"):
        layout.encode("é" * 100)
    with pytest.raises(ValueError, match=r"'\\udcff' is no text that can be written"):
        layout.encode("\udcff")


OTHERS = {
    "cut": "%2",
    "no hex": "%2f",
    "no UTF-8": "%FF",
    "a lone surrogate": "%ED%A0%80",
    "plain letters spelt out": "%61aa-1",
    "too long": "x" * (layout.MAX_NAME + 1),
    "too long once decoded": "%20" * 80,
}


@pytest.mark.parametrize("part", OTHERS.values(), ids=OTHERS)
def test_who_reads_names_passes_over_what_encode_never_writes(part: str) -> None:
    with pytest.raises(ValueError, match=r"encoded name|is the limit"):
        layout.decode(part)
    assert layout.parse_owner(f"{part}~{INC}") is None
    assert layout.parse_status_name(f"{part}.json") is None
    assert layout.parse_launch_token(f"{part}.launch-1-01234567") is None
    assert members.parse_member_name(f"{part}.member.json") is None
    for stream in (part, layout.encode("jobs/") + part):
        batch = f"{stream}-{CLIENT}-7"
        assert layout.parse_inbox_name(0, f"{batch}.0.0") is None
        assert layout.parse_claim_name(f"0~{batch}.0.0") is None
        assert layout.parse_outbox_name(f"{batch}.0~{INC}.done") is None


def test_a_name_with_dots_is_none_where_dots_are_spelt_out() -> None:
    assert layout.decode("a%2Eb") == "a.b"
    with pytest.raises(ValueError, match="a%2Eb is how it is written"):
        layout.decode("a.b")
    assert layout.parse_status_name("a.b.json") == "a.b"
    assert layout.parse_status_name("a%2Eb.json") is None


@pytest.mark.parametrize("host", ["watch", "x.wrap", "a.b", "wrap"])
def test_files_under_ctl_are_their_hosts_however_these_are_spelt(host: str) -> None:
    token = layout.LaunchToken(host, 1, "01234567")
    assert layout.parse_launch_token(token.path.rpartition("/")[2]) == token
    assert members.parse_member_name(members.member_path(host).rpartition("/")[2]) == host


@pytest.mark.parametrize("part", ["", "a b", "%2f", "%2", "%", "a/b", "é", "a~b", "x\n"])
def test_what_encode_never_writes_is_not_decoded(part: str) -> None:
    with pytest.raises(ValueError, match="not an encoded name"):
        layout.decode(part)


def test_names_fit_into_what_filesystems_take() -> None:
    longest = Token(layout.batch_id("x" * layout.MAX_NAME, CLIENT, 10**9), 9999, 10**4, 10**4)
    owner = Owner("h" * layout.MAX_NAME, INC)
    out = layout.outcome(owner, longest)
    paths = [
        layout.inbox_path(longest),
        layout.claim_path(owner, longest),
        out.result,
        out.part(10**6),
        layout.status_path(owner.host),
        layout.host_file(owner.host, "identity.json"),
        f"quarantine/{out.result.rpartition('/')[2]}.reason.json",
        f"dead/{longest.batch}.reason.json",
    ]
    paths += [layout.temporary(p, "4194304-01234567") for p in paths]
    for path in paths:
        assert all(len(part) <= 255 for part in path.split("/")), path


@given(tokens, owners)
def test_tokens_come_back_from_their_names(token: Token, owner: Owner) -> None:
    folder, _, name = layout.inbox_path(token).rpartition("/")
    assert folder == layout.inbox_dir(token.shard)
    assert layout.parse_inbox_name(token.shard, name) == token
    folder, _, name = layout.claim_path(owner, token).rpartition("/")
    assert folder == owner.folder
    assert layout.parse_claim_name(name) == token
    assert layout.parse_owner(folder.rpartition("/")[2]) == owner


@given(outcomes, numbers)
def test_outcomes_come_back_from_their_names(out: Outcome, i: int) -> None:
    for path, kind, number in (
        (out.result, "result", 0),
        (out.done, "done", 0),
        (out.part(i), "part", i),
    ):
        folder, _, name = path.rpartition("/")
        assert folder == layout.outbox_dir(layout.stream_of(out.batch))
        assert layout.parse_outbox_name(name) == (out, kind, number)


@given(names, incarnations, numbers)
def test_a_batch_id_tells_its_stream_and_number(stream: str, inc: str, seq: int) -> None:
    batch = layout.batch_id(stream, inc, seq)
    assert layout.decode(layout.stream_of(batch)) == stream
    assert layout.seq_of(batch) == seq


@given(names)
def test_heartbeats_come_back_from_their_names(host: str) -> None:
    assert layout.parse_status_name(layout.status_path(host).rpartition("/")[2]) == host


@given(names, names, incarnations)
def test_paths_of_users_names_never_leave_their_folders(one: str, two: str, inc: str) -> None:
    owner, token = Owner(one, inc), Token(layout.batch_id(two, inc, 0), 0)
    for path in (
        layout.inbox_path(token),
        layout.claim_path(owner, token),
        layout.outcome(owner, token).done,
        layout.status_path(one),
        layout.host_file(one, "pid"),
        layout.dead_path(token.batch),
        layout.temporary(layout.inbox_path(token), "u"),
    ):
        parts = path.split("/")
        assert parts[0] in ("inbox", "claims", "outbox", "status", "ctl", "dead")
        assert len(parts) in (2, 3)
        assert all(p and p not in (".", "..") and "\0" not in p for p in parts)


FOREIGN = [
    "",
    ".",
    ".nfs0000000000a1b2c3",
    ".DS_Store",
    ".tmp~1-ab~" + f"{BATCH}.0.0",
    f"{BATCH}.0.0~",
    f"{BATCH}.0.0.swp",
    f"#{BATCH}.0.0#",
    f"{BATCH}.0",
    f"{BATCH}.0.0.0",
    f"{BATCH}.00.0",
    f"{BATCH}.01.0",
    f"{BATCH}.0.-1",
    f"{BATCH}.0.0\n",
    f"{BATCH}.٣.0",
    f" {BATCH}.0.0",
    f"{BATCH.upper()}.0.0",
    f"s-{CLIENT}-07.0.0",
    f"s-{CLIENT}.0.0",
    f"-{CLIENT}-7.0.0",
    f"a.b-{CLIENT}-7.0.0",
    f"%2f-{CLIENT}-7.0.0",
    f"s-{CLIENT[:-1]}-7.0.0",
    "lost+found",
    "core.1234",
    "README",
    "manifest.json",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_names_are_no_batches(name: str) -> None:
    assert layout.parse_inbox_name(0, name) is None
    assert layout.parse_claim_name(name) is None
    assert layout.parse_claim_name(f"0~{name}") is None
    assert layout.parse_outbox_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        f"{BATCH}.0.0",
        f"~{BATCH}.0.0",
        f"00~{BATCH}.0.0",
        f"x~{BATCH}.0.0",
        f"-1~{BATCH}.0.0",
        f"0~0~{BATCH}.0.0",
        f".0~{BATCH}.0.0",
    ],
)
def test_foreign_names_are_no_claims(name: str) -> None:
    assert layout.parse_claim_name(f"0~{BATCH}.0.0")
    assert layout.parse_claim_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        f"{BATCH}.1~{INC}",
        f"{BATCH}.1~{INC}.",
        f"{BATCH}.1~{INC}.results",
        f"{BATCH}.1~{INC}.done~",
        f"{BATCH}.1~{INC}.DONE",
        f"{BATCH}.1~{INC}.part",
        f"{BATCH}.1~{INC}.part00",
        f"{BATCH}.1~{INC}.part-1",
        f"{BATCH}.1~{INC}.done.part0",
        f"{BATCH}.01~{INC}.done",
        f"{BATCH}.1~{INC[:-1]}.done",
        f"{BATCH}.1~{INC.upper()}.done",
        f"{BATCH}.1.0~{INC}.done",
        f"{BATCH}~{INC}.done",
        f".tmp~u~{BATCH}.1~{INC}.part0",
        f".counters~{INC}.json",
    ],
)
def test_foreign_names_are_no_outcomes(name: str) -> None:
    assert layout.parse_outbox_name(f"{BATCH}.1~{INC}.done")
    assert layout.parse_outbox_name(name) is None


@pytest.mark.parametrize(
    "name", ["", "n1", f"~{INC}", f"n1~{INC[:-1]}", f"n1~{INC}~{INC}", f"n 1~{INC}", f"%ff~{INC}x"]
)
def test_foreign_names_are_no_owners(name: str) -> None:
    assert layout.parse_owner(name) is None


def test_a_host_that_is_no_text_is_no_owner() -> None:
    assert layout.parse_owner(f"%FF~{INC}") is None


@pytest.mark.parametrize("name", ["n1", ".json", ".n1.json", "n1.json~", "n 1.json", "%ff.json"])
def test_foreign_names_are_no_heartbeats(name: str) -> None:
    assert layout.parse_status_name(name) is None


def test_a_temporary_is_hidden_and_lies_beside() -> None:
    assert layout.temporary("a/b/c", "u") == "a/b/.tmp~u~c"
    assert layout.temporary("c", "u") == ".tmp~u~c"


def test_attempts_count_claims_and_deaths_count_proven_deaths() -> None:
    token = Token(BATCH, 3)
    claimed = token.claimed()
    assert (claimed.attempt, claimed.deaths) == (1, 0)
    assert claimed.returned(died=False) == claimed
    assert claimed.returned(died=True).claimed() == Token(BATCH, 3, 2, 1)


@pytest.mark.parametrize(
    ("content", "launch", "covered"),
    [
        ("", 1, True),
        ("\n", 99, True),
        ("3", 3, True),
        ("3\n", 4, False),
        ("0", 1, False),
        ("stop", 5, True),
        ("-1", 5, True),
        ("²", 5, True),
    ],
)
def test_which_launches_a_stop_intent_covers(content: str, launch: int, covered: bool) -> None:
    assert layout.stop_covers(content, launch) is covered


def test_incarnations_are_new_and_fit_the_grammar() -> None:
    found = {layout.new_incarnation() for _ in range(100)}
    assert len(found) == 100
    assert all(layout.parse_owner(f"h~{i}") for i in found)
