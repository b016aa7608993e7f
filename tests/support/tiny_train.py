"""A training script that is quick and deterministic: weights are numbers, episodes change them.

    tiny_train.py --save FILE [--episodes N] [--load FILE --transfer] [--seed S] [--steps N]
                  [--pause S] [--diary FILE] [--total] [--say K=V …] [--do WHAT]

The same seed, weights and number of the episode give the same result to the bit. `--diary` gets a
line for each episode that is begun and for each that is saved. `--do` is what goes wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEAF = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if sys.argv[1] == 'session': os.setsid()\n"
    "time.sleep(600)\n"
)


def note(path: str | None, line: str) -> None:
    if path:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, f"{line} {os.getpid()}\n".encode())
        os.close(fd)


def episode(weights: list[float], number: int, seed: int, steps: int) -> tuple[list[float], float]:
    draw = random.Random(f"{seed} {number}")
    for _ in range(steps):
        at = draw.randrange(len(weights))
        weights[at] += draw.gauss(0.0, 0.1) - 0.01 * weights[at]
    return weights, 10.0 * number + sum(weights)


def save(path: str, state: dict[str, Any]) -> None:
    Path(f"{path}.part").write_text(json.dumps(state))
    os.replace(f"{path}.part", path)


def go_wrong(what: str | None, number: int) -> None:
    kind, _, rest = (what or "").partition(":")
    if kind == "exit" and number >= int(rest or 0):
        print("this goes wrong on purpose", file=sys.stderr)
        sys.exit(3)
    if kind == "kill" and number >= int(rest or 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for how in ("plain", "session"):
            subprocess.Popen([sys.executable, "-c", DEAF, how])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", required=True)
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--load")
    parser.add_argument("--transfer", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--diary")
    parser.add_argument("--total", action="store_true")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--on-term", default="")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--do")
    args = parser.parse_args()
    before: dict[str, Any] = {"episode": 0, "rewards": []}
    weights = [0.0] * 8
    if args.load:
        before = json.loads(Path(args.load).read_text())
        weights = list(before["weights"])
    rewards = list(before["rewards"]) if args.total else []
    done = before["episode"] if args.total else 0
    told: list[int] = []
    if args.on_term:
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    for number in range(args.first, args.first + args.episodes):
        note(args.diary, f"begin {number}")
        print(f"episode {number} of seed {args.seed}")
        go_wrong(args.do, number)
        end = time.monotonic() + args.pause
        while time.monotonic() < end and not told:
            time.sleep(0.01)
        if told and args.on_term == "save":
            sys.exit(0)
        weights, reward = episode(weights, number, args.seed, args.steps)
        rewards.append(reward)
        done += 1
        if args.report:
            import fsworker

            fsworker.report(number, reward=reward, loss=1.0 / number)
        if args.each or number == args.first + args.episodes - 1 or told:
            save(args.save, {"episode": done, "rewards": rewards, "weights": weights})
            note(args.diary, f"saved {number}")
        if told:
            sys.exit(0)


if __name__ == "__main__":
    main()
