"""One file a command: its options and its run. `ctl.cli` finds them by name."""
