"""Files of other programs, read as run files."""
