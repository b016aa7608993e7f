"""What a test runs on several machines at once: each publishes a folder under the same names.

python -m tests.cluster.publisher ROOT WHO COUNT     prints the names that it was the first at
"""

from __future__ import annotations

import json
import sys
import time

from fsworker.protocol import artifacts
from fsworker.protocol.fsops import Store


def main() -> int:
    root, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = Store(root)
    while "go" not in store.scan(""):
        time.sleep(0.05)
    won = []
    for index in range(count):
        target = f"token{index}"
        folder = artifacts.prepare(store, target)
        store.put(f"{folder}/who", who.encode())
        store.put(f"{folder}/again", who.encode())
        if artifacts.publish(store, folder, target):
            won.append(target)
    print(json.dumps(won))
    return 0


if __name__ == "__main__":
    sys.exit(main())
