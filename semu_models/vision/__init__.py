"""Vision encoders, one family per file."""
