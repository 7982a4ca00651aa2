"""Speed, quality, and the papers' own results; see README.md. Scripts also run as ``python benchmarks/NAME.py``."""
