"""Which workers of a run differ in the code that they run, and in what."""
