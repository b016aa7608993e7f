"""The protocol on the shared filesystem: names, records, data files, and how a batch moves."""
