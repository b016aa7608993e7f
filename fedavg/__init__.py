"""Merging of checkpoints into one global model; see `fedavg --help`."""
