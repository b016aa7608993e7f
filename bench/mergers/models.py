"""Checkpoints to merge, and how near a merged one is to what it should be.

    models.py make DTYPE MIB COUNT FOLDER        COUNT models of MIB each, as torch.save writes them
    models.py error MERGED COUNTS FILE...        prints one JSON line

The right value of an element is Σ n_k w_k / Σ n_k in the machine's widest floats (64 bits of
fraction). Where another value of the element's type is nearer to it, it is not correctly rounded.
"""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import torch

WIDTH = 2048
LOOKED_AT = 1 << 21
"""Elements of the first tensors that are compared."""


def make(dtype: str, mib: int, count: int, folder: str) -> None:
    """Models of blocks of a matrix and a bias each, with values as trained ones have."""
    kind = getattr(torch, dtype)
    blocks = max(1, (mib << 20) // (WIDTH * (WIDTH + 1) * kind.itemsize))
    for i in range(count):
        torch.manual_seed(i)
        model = {}
        for b in range(blocks):
            model[f"blocks.{b}.weight"] = torch.randn(WIDTH, WIDTH).mul_(0.02).to(kind)
            model[f"blocks.{b}.bias"] = torch.randn(WIDTH).mul_(0.1).to(kind)
        torch.save(model, f"{folder}/{dtype}-{mib}-{i}.pt")


def error(merged: str, counts: list[int], files: list[str]) -> dict[str, float]:
    """The largest error, relative to the largest input and in steps of the result, and the share
    of elements that are not correctly rounded."""
    found = torch.load(merged, mmap=True, weights_only=True)
    models = [torch.load(path, mmap=True, weights_only=True) for path in files]
    seen, wrong, relative, steps = 0, 0, 0.0, 0.0
    for key, value in found.items():
        if seen >= LOOKED_AT:
            break
        rows = [m[key].double().numpy().astype(np.longdouble) for m in models]
        exact = sum(n * row for n, row in zip(counts, rows, strict=True)) / sum(counts)
        off = np.abs(value.double().numpy() - exact)
        relative = max(relative, float(off.max() / max(np.abs(row).max() for row in rows)))
        sides = [
            torch.nextafter(value, torch.tensor(side, dtype=value.dtype)).double().numpy()
            for side in (-math.inf, math.inf)
        ]
        wrong += int(np.logical_or.reduce([np.abs(s - exact) < off for s in sides]).sum())
        gap = np.maximum(*(np.abs(s - value.double().numpy()) for s in sides))
        steps = max(steps, float((off / gap).max()))
        seen += value.numel()
    return {"relative": relative, "ulp": steps, "not_nearest": wrong / seen}


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        print(json.dumps(error(sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:])))
