"""A run whose workers are jobs of Slurm: submitted, attached from where they land, cancelled."""
