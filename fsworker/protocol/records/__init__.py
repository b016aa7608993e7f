"""Typed records of the control files, each with its encoder and its strict decoder."""
