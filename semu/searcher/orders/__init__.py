"""Search over sequences of segment groups: strategies, the loop of rounds, refinement."""
