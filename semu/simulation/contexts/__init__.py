"""What policies of context ranks make of a batch."""
