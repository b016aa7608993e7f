"""Groups: what lies in `outbox/federation/<group>/`.

A round has the number of the episode that it merges: round 3 merges what is in
`from_worker/after_ep_0003` into `to_worker/before_ep_0004`.
"""

from __future__ import annotations

import re

from fsworker.protocol.layout.jobs import FOUR, after_name, before_name, four
from fsworker.protocol.layout.names import CTL, INC, NAME, OUTBOX, decode, encode

FEDERATION = OUTBOX + "/federation"
GROUP_FILE, PLAN_FILE, TIMES_FILE, MERGE_FILE = (
    "group.json",
    "plan.json",
    "times.json",
    "merge.json",
)
MEMBER_FILE = "member.json"
WEIGHTS_STEM, STATE_STEM = "global_weights", "optimizer_state"
AGGREGATOR_FOLDER = CTL + "/aggregator"
"""What a controller keeps of the aggregator that it started: a folder, because a file
`aggregator.log` would be that of a host of this name."""
AGGREGATOR_IDENTITY = AGGREGATOR_FOLDER + "/identity.json"
AGGREGATOR_LOG = AGGREGATOR_FOLDER + "/log"
AGGREGATOR_LOCK = FEDERATION + "/.aggregator.lock"
AGGREGATOR_BEAT = FEDERATION + "/.aggregator.json"

_UNLOCKED_BEAT = re.compile(rf"\.aggregator~(?P<incarnation>{INC})\.json")
_REASON = re.compile(rf"(?P<job>{NAME})\.json")


def unlocked_beat(incarnation: str) -> str:
    """The sign of life of an aggregator that went on without a lock."""
    return f"{FEDERATION}/.aggregator~{incarnation}.json"


def parse_unlocked_beat(name: str) -> str | None:
    """The incarnation of the aggregator without a lock whose sign of life a file is."""
    m = _UNLOCKED_BEAT.fullmatch(name)
    return m["incarnation"] if m else None


def group_dir(group: str) -> str:
    """A group's folder. `group` is its id as its user gave it."""
    return f"{FEDERATION}/{encode(group)}"


def parse_group_name(name: str) -> str | None:
    """The group whose folder in `outbox/federation/` has this name."""
    try:
        return decode(name) if re.fullmatch(NAME, name) else None
    except ValueError:
        return None


def group_file(group: str) -> str:
    """What the group is: rule, size, quorum, deadline, keep."""
    return f"{group_dir(group)}/{GROUP_FILE}"


def members_dir(group: str) -> str:
    """The places of a group: a folder each, so that two jobs never take the same."""
    return f"{group_dir(group)}/members"


def member_dir(group: str, place: int) -> str:
    """A place in a group, 1 to its size; it holds `member.json`."""
    return f"{members_dir(group)}/{four(place)}"


def uploads_dir(group: str) -> str:
    """The folder of all rounds' uploads."""
    return f"{group_dir(group)}/from_worker"


def round_uploads_dir(group: str, episode: int) -> str:
    """The folder of the uploads after an episode."""
    return f"{uploads_dir(group)}/{after_name(episode)}"


def upload_dir(group: str, episode: int, job: str) -> str:
    """A participant's upload after an episode: its checkpoint and `done.json`."""
    return f"{round_uploads_dir(group, episode)}/{encode(job)}"


def refusals_dir(group: str) -> str:
    """The folder of all refusals."""
    return f"{group_dir(group)}/refused"


def refused_dir(group: str, episode: int) -> str:
    """The folder of the reasons for which uploads after an episode were refused."""
    return f"{refusals_dir(group)}/{after_name(episode)}"


def refusal_file(group: str, episode: int, job: str) -> str:
    """Why a participant's upload was refused."""
    return f"{refused_dir(group, episode)}/{encode(job)}.json"


def parse_refusal_name(name: str) -> str | None:
    """The job whose refusal a file is."""
    m = _REASON.fullmatch(name)
    try:
        return decode(m["job"]) if m else None
    except ValueError:
        return None


def rounds_dir(group: str) -> str:
    """The folder of all closed rounds."""
    return f"{group_dir(group)}/rounds"


def round_dir(group: str, number: int) -> str:
    """A closed round: `plan.json`, and `times.json` for people."""
    return f"{rounds_dir(group)}/{four(number)}"


def parse_four(name: str) -> int | None:
    """The number of a round's folder, or of a place in a group."""
    return int(name) if re.fullmatch(FOUR, name) else None


def archive_dir(group: str) -> str:
    """The folder of the records of old rounds, many in a file."""
    return f"{group_dir(group)}/archive"


def archive_file(group: str, first: int) -> str:
    """The records of the rounds from `first` on."""
    return f"{archive_dir(group)}/{four(first)}.json"


def parse_archive_name(name: str) -> int | None:
    """The first round of a file in `archive/`."""
    number, dot, end = name.partition(".")
    return parse_four(number) if (dot, end) == (".", "json") else None


def globals_dir(group: str) -> str:
    """The folder of all global models."""
    return f"{group_dir(group)}/to_worker"


def global_dir(group: str, episode: int) -> str:
    """The global model that an episode starts from: `global_weights.*` and `merge.json`."""
    return f"{globals_dir(group)}/{before_name(episode)}"


def waiting_file(group: str) -> str:
    """Since when the open round has waited, by the file server's clock."""
    return f"{group_dir(group)}/waiting.json"


def retired_file(group: str) -> str:
    """Which models were removed, so that nobody takes them for lost."""
    return f"{group_dir(group)}/retired.json"


def final_file(group: str) -> str:
    """Which global model is the last one, once the last episode was merged."""
    return f"{group_dir(group)}/final.json"
