"""Methods of assignment: one a file, all in ``table``."""
