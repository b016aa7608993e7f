"""`python -m ctl`, for a checkout that is not installed and for the detached watcher."""

from __future__ import annotations

import sys

from ctl.entry import main

sys.exit(main())
