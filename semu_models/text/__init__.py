"""Language models, one family per file."""
