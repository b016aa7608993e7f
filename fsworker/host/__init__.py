"""What a launcher runs on a host: start, look, stop; standard library alone."""
