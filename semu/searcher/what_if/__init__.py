"""A job under changes, one at a time: which would help most."""
