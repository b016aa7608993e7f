"""Why something is where it is, what happened to it, and what happens next: from the root alone."""
