"""Training logs of other programs, and a log beside a simulation."""
