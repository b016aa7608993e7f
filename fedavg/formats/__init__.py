"""Formats of checkpoints, one module an idea; `fedavg.checkpoint` is what others import."""
