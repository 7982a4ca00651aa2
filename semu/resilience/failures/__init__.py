"""Where events of nodes come from: drawn, or read from a file."""
