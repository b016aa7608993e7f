"""`python -m fedavg`: the command, for an interpreter whose scripts are on no PATH."""

from __future__ import annotations

import sys

from fedavg.cli import main

sys.exit(main())
