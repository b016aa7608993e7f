"""Bundles: the worker and what it needs as one file, for hosts on which nothing is installed."""
