"""A worker that comes by itself, where the controller cannot or need not reach the machine."""
