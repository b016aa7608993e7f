"""Keeping one worker of a host alive, from its start-up on; standard library alone."""
