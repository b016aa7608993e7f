"""Training jobs as the head node sees them: submitted, looked at, cancelled, tried again."""
