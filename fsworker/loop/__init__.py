"""What the worker's loop hears from the root, and what it holds of it."""
