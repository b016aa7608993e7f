"""Whether hosts, their connection and the filesystem are fit for a run: measured, then judged."""
