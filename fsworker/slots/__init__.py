"""Executing tasks: batches to ranges, ranges to slots, and what runs inside a slot."""
