"""Training jobs: a process tree each, by episodes, with checkpoints that outlive their host."""
