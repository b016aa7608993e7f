"""From a plan to the global model: a function of the plan alone, published as one folder.

Whoever is killed here, or works at the same time as another, comes to the same bytes: the inputs
are named by digest, their order is that of their names, and no time and no host enters. What was
not published is found again under a hidden name, and removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from fedavg import strategies
from fedavg.checkpoint import Checkpoint, open_checkpoint
from fedavg.engine.statefile import open_state
from fedavg.merging import Contribution, Merged, merge
from fedavg.policy import policy_from
from fsworker.errors import FormatError
from fsworker.protocol import artifacts, layout
from fsworker.protocol.artifacts import Damaged, FileDigest
from fsworker.protocol.federation import Global, read_global
from fsworker.protocol.fsops import Store, storage_error
from fsworker.protocol.groupview import GroupEye
from fsworker.protocol.layout import groups
from fsworker.protocol.records.artifact import checkpoint_name, tree_digest
from fsworker.protocol.records.round import Contributor, Merge, Plan, sha256

log = logging.getLogger(__name__)

Trusted = Callable[[Contributor], bool]
"""Whether this process verified an upload and nothing wrote to it since."""


def distrust(contributor: Contributor) -> bool:
    """Verify every byte."""
    return False


def trust(contributor: Contributor) -> bool:
    """Verify none: the caller did."""
    return True


def prepare_merge(
    store: Store, eye: GroupEye, plan: Plan, *, trusted: Trusted = distrust, threads: int = 2
) -> str:
    """Merge what a plan names, whether it is published or not: gives a folder to be published.

    Raises FormatError for an input that is not what the plan says, UsageError and Refused for what
    cannot be merged, StorageError. Nothing is left then.
    """
    prepared = artifacts.prepare(store, groups.global_dir(plan.group, plan.round + 1))
    try:
        merge_into(store, eye, plan, prepared, trusted=trusted, threads=threads)
    except BaseException as error:
        artifacts.discard(store, prepared)
        if isinstance(error, OSError):
            raise storage_error(error, "write", store.path(prepared)) from None
        raise
    return prepared


def publish_prepared(store: Store, eye: GroupEye, plan: Plan, prepared: str) -> Global:
    """Publish the model of a closed round: ours, or that of who was faster. StorageError."""
    target = groups.global_dir(plan.group, plan.round + 1)
    try:
        mine = sha256(store.read(f"{prepared}/{groups.MERGE_FILE}"))
    except OSError as error:
        raise storage_error(error, "read", store.path(prepared)) from None
    won = artifacts.publish(store, prepared, target)
    found = eye.model(plan.round + 1)
    if found is None:
        path = store.path(target)
        raise FormatError(f"{path} was published and holds no {groups.MERGE_FILE}", path=path)
    if not won and found.record_digest != mine:
        log.warning(
            "%s: another aggregator published round %d first, with other bytes (%s, here: %s)",
            plan.group, plan.round, found.merge.versions, versions(),
        )  # fmt: skip
    return found


def merge_into(
    store: Store,
    eye: GroupEye,
    plan: Plan,
    folder: str,
    *,
    trusted: Trusted = distrust,
    threads: int = 2,
) -> Merge:
    """Compute a plan's model, state and `merge.json` into an empty folder of the root."""
    state_out = f"{groups.STATE_STEM}.safetensors"
    out = store.path(f"{folder}/{new_name(store, plan)}")
    state_path = store.path(f"{folder}/{state_out}")
    compute(store, eye, plan, out, state_path, trusted=trusted, threads=threads)
    files = artifacts.digest_files(store, folder)
    weights = tuple(f for f in files if f.name != state_out)
    kept = tuple(f for f in files if f.name == state_out)
    record = Merge(
        plan.group,
        plan.round,
        plan.rule,
        weights,
        tree_digest(weights),
        sha256(plan.to_json()),
        plan.previous,
        plan.base,
        kept,
        tree_digest(kept) if kept else None,
        versions(),
    )
    store.put(f"{folder}/{groups.MERGE_FILE}", record.to_json())
    return record


def new_name(store: Store, plan: Plan) -> str:
    """What the model of a round is to be called: its format, and so its ending, is the uploads'."""
    first = plan.contributors[0]
    name = upload_path(store, plan.group, first).rpartition("/")[2]
    is_file = any(file.name == name for file in first.files)
    return groups.WEIGHTS_STEM + (layout.ending(name) if is_file else "")


def output_name(store: Store, plan: Plan) -> str:
    """What the model of a round is called: as it was published, by whatever version, or will be."""
    model = read_global(store, plan.group, plan.round + 1)
    return new_name(store, plan) if model is None else os.path.basename(model_path(store, model))


def compute(
    store: Store,
    eye: GroupEye,
    plan: Plan,
    out: str,
    state_out: str,
    *,
    trusted: Trusted = distrust,
    threads: int = 2,
) -> Merged:
    """Merge what a plan names into files outside or inside the root."""
    rule = strategies.rule(plan.rule, plan.options)
    with _opened(store, eye, plan) as (inputs, base, state):
        for contributor in plan.contributors:  # they are open: what changes from here on is noticed
            if not trusted(contributor):
                verify_contributor(store, plan.group, contributor)
        return merge(
            rule,
            inputs,
            out,
            base=base,
            state_in=state,
            state_out=state_out if rule.kind.state else None,
            policy=policy_from(plan.keys.items(), plan.lora),
            threads=threads,
            digests=False,
        )


def verify_contributor(store: Store, group: str, contributor: Contributor) -> None:
    """Damaged when an upload is not, byte for byte, what the plan says."""
    folder = groups.upload_dir(group, contributor.episode, contributor.job)
    artifacts.verify_files(store, folder, contributor.files, full=True, exact=True)


def versions() -> dict[str, str]:
    """What the bytes of a merge depend on besides the plan."""
    import torch  # lazily: slow to import, and only who merges needs it

    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}


def upload_path(store: Store, group: str, contributor: Contributor) -> str:
    """The real path of an upload's checkpoint. Damaged when it holds no one checkpoint."""
    folder = groups.upload_dir(group, contributor.episode, contributor.job)
    return checkpoint_path(store, folder, contributor.files, "checkpoint")


def model_path(store: Store, model: Global) -> str:
    """The real path of a global model's weights. Damaged when it holds no one file of them."""
    return checkpoint_path(store, model.folder, model.merge.files, groups.WEIGHTS_STEM)


def checkpoint_path(store: Store, folder: str, files: tuple[FileDigest, ...], stem: str) -> str:
    """The real path of what is to be opened of a published folder; Damaged when nothing is."""
    try:
        return store.path(f"{folder}/{checkpoint_name(files, stem)}")
    except ValueError as error:
        raise Damaged(f"{store.path(folder)}: {error}", path=store.path(folder)) from None


Opened = tuple[list[Contribution], Checkpoint | None, Checkpoint | None]


@contextmanager
def _opened(store: Store, eye: GroupEye, plan: Plan) -> Iterator[Opened]:
    """The contributions, the base and the optimiser state of a plan, open for reading.

    Every byte of the models and the state was read and is what the plan says.
    """
    with ExitStack() as stack:

        def opened(path: str) -> Checkpoint:
            return stack.enter_context(open_checkpoint(path))

        bases: dict[str, Checkpoint] = {}
        base = state = None
        if plan.base is not None:
            model = _model(store, eye, plan.round, plan.base)
            base = bases[plan.base] = opened(model_path(store, model))
            if plan.state is not None:
                path = _state_path(store, model, plan.state)
                state = stack.enter_context(open_state(path))
        inputs = []
        for c in plan.contributors:
            own = None
            if c.base is not None and plan.base is not None and c.base != plan.base:
                if c.base not in bases:
                    model = _model(store, eye, c.episode, c.base)
                    bases[c.base] = opened(model_path(store, model))
                own = bases[c.base]
            checkpoint = opened(upload_path(store, plan.group, c))
            inputs.append(Contribution(c.job, checkpoint, c.weight, own, plan.round - c.episode))
        yield inputs, base, state


def _model(store: Store, eye: GroupEye, episode: int, digest: str) -> Global:
    """The model that an episode started from. Damaged when it is another."""
    model = eye.model(episode)
    folder = groups.global_dir(eye.group, episode)
    path = store.path(folder)
    if model is None:
        raise Damaged(f"{path} is missing, which round {episode} started from", path=path)
    if model.merge.digest != digest:
        raise Damaged(f"{path} is another model than the plan says", path=path)
    artifacts.verify_files(store, folder, model.merge.files, full=True)
    return model


def _state_path(store: Store, model: Global, digest: str) -> str:
    path = store.path(model.folder)
    if model.merge.state_digest != digest:
        raise Damaged(f"{path} has another optimiser state than the plan says", path=path)
    artifacts.verify_files(store, model.folder, model.merge.state, full=True)
    return f"{path}/{model.merge.state[0].name}"
