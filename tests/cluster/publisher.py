"""What a test runs on several machines at once: each publishes folders under the same names.

python -m tests.cluster.publisher ROOT WHO COUNT     prints the names that it was the first at
"""

from __future__ import annotations

import json
import random
import sys
import time

from fsworker.protocol import artifacts
from fsworker.protocol.fsops import Store


def main() -> int:
    root, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = Store(root)
    store.put(f"ready-{who}", b"")
    while "go" not in store.scan(""):
        time.sleep(0.05)
    won = []
    targets = [f"token{index}" for index in range(count)]
    random.Random(who).shuffle(targets)  # or whoever begins first is ahead to the end
    for target in targets:
        folder = artifacts.prepare(store, target)
        store.put(f"{folder}/who", who.encode())
        store.put(f"{folder}/again", who.encode())
        if artifacts.publish(store, folder, target):
            won.append(target)
    print(json.dumps(won))
    return 0


if __name__ == "__main__":
    sys.exit(main())
