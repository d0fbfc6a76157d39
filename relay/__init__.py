"""Move committed messages from the log to the broker."""
