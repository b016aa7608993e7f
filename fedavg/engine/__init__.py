"""The parts of `fedavg.merging`: from what is refused up front to the bytes of the output."""
