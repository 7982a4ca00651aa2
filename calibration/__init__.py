"""Measuring a real GPU: the suite (``measure.py``), its tables, and simulated against measured (``compare.py``)."""
