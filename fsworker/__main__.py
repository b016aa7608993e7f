"""`python -m fsworker`: how a wrapper starts the worker, with whatever interpreter it was given."""

from __future__ import annotations

from fsworker.cli import main

if __name__ == "__main__":
    main()
