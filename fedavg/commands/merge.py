"""`fedavg merge`: checkpoints to a checkpoint, without a run or a group."""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from fedavg.targets import Target, named
from fsworker.errors import UsageError

if TYPE_CHECKING:
    from fedavg.checkpoint import Checkpoint
    from fedavg.merging import Contribution, Merged
    from fedavg.policy import Policy
    from fedavg.rule import Kind


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--out", required=True, metavar="OUT", help="Write the merged checkpoint here.")
@click.option(
    "--rule",
    "rule_name",
    default="fedavg",
    show_default=True,
    metavar="NAME",
    help="fedavg, fedavgm, fedadagrad, fedadam, fedyogi, diloco, fedbuff, median, "
    "trimmed-mean, krum or multi-krum.",
)
@click.option(
    "--set", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the rule."
)
@click.option(
    "--weights",
    metavar="N,N,...",
    help="The sample counts, in the order of the files; without it all weigh the same.",
)
@click.option("--base", metavar="FILE", help="The model that the round started from.")
@click.option("--staleness", metavar="N,N,...", help="For fedbuff: how many rounds old each is.")
@click.option("--state-in", metavar="FILE", help="The optimiser state of the round before.")
@click.option("--state-out", metavar="FILE", help="Write the optimiser state here.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="PATTERN=ACTION",
    help="What becomes of keys: rule, mean, max, first or base.",
)
@click.option(
    "--lora",
    type=click.Choice(["product", "factors"]),
    help="What is averaged of low-rank adapters.",
)
@click.option("--threads", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--force", is_flag=True, help="Replace OUT and the state if they exist.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def merge(**options: Any) -> None:
    """Merge checkpoints into one.

    FILES are .pt, .safetensors or .json files, stable-baselines3 zips, or folders of safetensors
    shards, all with the same keys, shapes and types. Their order makes no difference.
    """
    _merge(**options)


def _merge(
    files: tuple[str, ...], out: str, weights: str | None, staleness: str | None, base: str | None,
    state_in: str | None, state_out: str | None, force: bool, as_json: bool, **how: Any,
) -> None:  # fmt: skip
    from fedavg import merging, policy, strategies  # lazily: this imports torch
    from fedavg.rule import params_from

    of = strategies.rule(how["rule_name"], params_from(how["params"]))
    keep = policy.policy_from([_key(text) for text in how["keys"]], how["lora"])
    if of.kind.state and state_out is None:
        raise UsageError(f"{of.name} keeps an optimiser state: say where with --state-out")
    counts = _numbers("--weights", weights, len(files)) or [None] * len(files)
    ages = _ages(files, staleness)
    if state_out is not None and os.path.realpath(state_out) == os.path.realpath(out):
        raise UsageError(f"{out}: -o and --state-out name one file, and need two", path=out)
    given = [path for path in (state_out, out) if path is not None]
    targets = [Target(path, force=force, hint="--force replaces it") for path in given]
    for target in targets:
        target.sweep()
    with ExitStack() as stack, named(targets):

        def opened(path: str | None, state: bool = False) -> Checkpoint | None:
            return None if path is None else stack.enter_context(_open(path, state))

        models = [stack.enter_context(_open(f)) for f in files]
        _refuse_unused(of.kind, keep, models[0], {
            "--staleness": staleness, "--base": base, "--state-in": state_in,
            "--state-out": state_out, "--lora": how["lora"],
        })  # fmt: skip
        inputs = _contributions(files, models, counts, ages)
        merged = merging.merge(
            of, inputs, targets[-1].temporary, base=opened(base), state_in=opened(state_in, True),
            state_out=targets[0].temporary if of.kind.state else None,
            policy=keep, threads=how["threads"],
        )  # fmt: skip
    for target in targets if of.kind.state else targets[-1:]:
        target.publish()
    _tell(out, of.name, [c.name for c in inputs], merged, state_out, as_json)


def _refuse_unused(
    kind: Kind, keep: Policy, model: Checkpoint, given: dict[str, str | None]
) -> None:
    from fedavg.unused import unused

    if found := unused(kind, keep, model, [name for name, value in given.items() if value]):
        raise UsageError(f"{'; '.join(found)}: leave out what is of no use")


def _open(path: str, state: bool = False) -> Checkpoint:
    from fedavg.checkpoint import open_checkpoint
    from fedavg.engine.statefile import open_state

    if not path:
        raise UsageError("a file to read has no name: is a variable of the shell empty?")
    if not os.path.exists(path):
        raise UsageError(f"{path}: there is no such file or folder", path=path)
    return open_state(path) if state else open_checkpoint(path)


def _contributions(
    files: tuple[str, ...], opened: list[Checkpoint], counts: Any, ages: Any
) -> list[Contribution]:
    from fedavg.merging import Contribution

    found = []
    for i, path in enumerate(files):
        again = files[:i].count(path)
        name = f"{path} ({again + 1})" if again else path
        found.append(Contribution(name, opened[i], counts[i], staleness=ages[i]))
    return found


def _key(text: str) -> tuple[str, str]:
    pattern, _, action = text.rpartition("=")
    if not pattern:
        raise UsageError(f"--key {text}: give it as PATTERN=ACTION")
    return pattern, action


def _numbers(option: str, text: str | None, count: int) -> list[Any] | None:
    if text is None:
        return None
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text}: give numbers with commas between them") from None
    if len(found) != count:
        raise UsageError(f"{option} has {len(found)} numbers for {count} files")
    return found


def _ages(files: tuple[str, ...], staleness: str | None) -> list[Any]:
    ages = _numbers("--staleness", staleness, len(files)) or [0] * len(files)
    for path, age in zip(files, ages, strict=True):
        if not math.isfinite(age):  # weights are looked at with those of groups, ages are made here
            raise UsageError(f"{path}: a staleness of {age} rounds is none")
    return ages


def _tell(
    out: str, rule: str, names: list[str], merged: Merged, state: str | None, as_json: bool
) -> None:
    if as_json:
        kept = {"state": state, "state_digest": merged.state_digest} if merged.state_digest else {}
        document = {
            "out": out, "digest": merged.digest, "rule": rule, "weights": merged.weights,
            "scores": merged.scores, **kept, "exit_code": 0,
        }  # fmt: skip
        print(json.dumps(document, indent=1))
        return
    from fedavg.formats.errors import shown

    for name in sorted(names):
        share = merged.weights.get(name)
        score = f"  score {merged.scores[name]:.6g}" if name in merged.scores else ""
        part = "takes no part" if share is None else f"{share:.2%}"
        print(shown(f"{name}: {part}{score}"))
    print(shown(f"{out}: merged by {rule}, sha256 {merged.digest}"))
    if merged.state_digest:
        print(shown(f"{state}: optimiser state, sha256 {merged.state_digest}"))
    sys.stdout.flush()
