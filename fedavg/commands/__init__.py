"""The commands of `fedavg`: one file a verb, its options and its run."""
