"""The controller: starts, watches, stops and cleans up fleets of workers from a head node."""
