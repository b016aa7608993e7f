"""Machines for tests: real sshd on hosts that have their own name and their own processes."""
