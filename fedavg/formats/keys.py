"""Canonical keys: one spelling for a tensor, whatever wrapped the model that saved it.

A key is the path to a leaf through nested dicts and lists, its parts joined by dots. Wrappers of
torch put a prefix before every name of a state_dict (`module.` by DataParallel, `_orig_mod.` by
torch.compile, both in any order); it is dropped. Two leaves that would get one key are refused with
both spellings, since nobody can know which one is meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from fedavg.formats.errors import UnsupportedCheckpoint

COMPILED = "_orig_mod."
PREFIXES = (COMPILED, "module.")

MAX_DEPTH = 64
MAX_LEAVES = 250_000
MAX_KEY = 1_000
"""Characters of a key. Limits against a few bytes of pickle that unfold to gigabytes."""
MAX_KEYS_TOTAL = 1 << 26

Path = tuple[object, ...]


class Tree(Protocol):
    """What a leaf is, and what is inside a node; see `nodes.children`."""

    def __call__(self, node: object) -> Iterator[tuple[object, object]] | None:
        """(part, child) pairs of a container, None for a leaf."""


def canonical(name: str) -> str:
    """One part of a path without the prefixes of wrappers.

    `_orig_mod.` is dropped wherever a part of a model was compiled; `module.` only in front, since
    within a name it may be what the user called a layer.
    """
    while name.startswith(PREFIXES):
        name = name.partition(".")[2]
    return name.replace("." + COMPILED, ".")


def join(key: str | None, part: object) -> str:
    """The key of what is called `part` (a dict's key, or an index) below `key`, None at the top."""
    text = canonical(part) if isinstance(part, str) else repr(part)
    return text if key is None else f"{key}.{text}"


def key_of(path: Path, key: str | None = None) -> str:
    """The key of the leaf at `path` below `key`."""
    for part in path:
        key = join(key, part)
    return key or ""


def spelling(path: Path) -> str:
    """A path as Python would write it: `['policy']['module.0.weight']`."""
    return "".join(f"[{part!r}]" for part in path)


def leaves(
    tree: object, children: Tree, where: str, top: str | None = None
) -> Iterator[tuple[str, Path, object]]:
    """(key, path, leaf) of every leaf in the order of the file, keys below `top`.

    `children(node)` gives (part, child) pairs, or None for a leaf. `where` is the
    file's name. Raises UnsupportedCheckpoint for what is nested too deep or too large, and for two
    leaves of one key.
    """
    seen: dict[str, Path] = {}
    for key, path, leaf in _walk(tree, children, where, top):
        if key in seen:
            raise UnsupportedCheckpoint(
                where,
                f"{spelling(seen[key])} and {spelling(path)} are both {key!r} once the prefixes "
                "of wrappers are dropped; save one of them",
            )
        if len(seen) >= MAX_LEAVES:
            raise UnsupportedCheckpoint(where, f"it holds more than {len(seen)} values")
        seen[key] = path
        yield key, path, leaf


def _walk(
    tree: object, children: Tree, where: str, top: str | None
) -> Iterator[tuple[str, Path, object]]:
    """Depth first with a stack of our own; empty containers have no leaf but cost a step each."""
    steps = total = 0
    stack: list[tuple[str | None, Path, object]] = [(top, (), tree)]
    while stack:
        key, path, node = stack.pop()
        steps += 1
        inside = children(node)
        if inside is None:
            yield key or "", path, node
            continue
        parts = list(inside)
        if len(path) >= MAX_DEPTH or steps + len(stack) + len(parts) > 2 * MAX_LEAVES:
            raise UnsupportedCheckpoint(
                where, f"it is nested too deep or too large at {key or ''!r:.80}"
            )
        below = [(join(key, part), (*path, part), child) for part, child in parts]
        total += sum(len(k) for k, _, _ in below)
        if total > MAX_KEYS_TOTAL or any(len(k) > MAX_KEY for k, _, _ in below):
            raise UnsupportedCheckpoint(where, "its keys are too long")
        stack.extend(reversed(below))


LORA = (".lora_A.", ".lora_B.", ".lora_embedding_A.", ".lora_embedding_B.")


def lora_pairs(keys: Mapping[str, object] | Sequence[str]) -> dict[str, tuple[str, str]]:
    """The pairs of LoRA factors among keys: `{module: (key of A, key of B)}`.

    As PEFT names them: `….lora_A.weight`, with an adapter's name `….lora_A.default.weight`, and
    `lora_embedding_A` without `weight`. A factor whose partner is missing is no pair; averaging the
    factors of a pair is not averaging their product, so whoever merges must ask.
    """
    found: dict[str, tuple[str, str]] = {}
    names = set(keys)
    for name in keys:
        dotted = f".{name}."
        for a, b in ((LORA[0], LORA[1]), (LORA[2], LORA[3])):
            if a in dotted:
                partner = dotted.replace(a, b)[1:-1]
                if partner in names:
                    module, _, adapter = dotted.partition(a)
                    rest = adapter.strip(".").removesuffix("weight").strip(".")
                    found[(module[1:] + (f":{rest}" if rest else "")).strip(".")] = (name, partner)
    return found
