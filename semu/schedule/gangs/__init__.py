"""Chunks that several ranks hold and run together: ``barriers``, and ``weaving`` them into a schedule of all else."""
