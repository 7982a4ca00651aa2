"""Devices, links, efficiencies and clusters: what the simulated hardware can do and where each number comes from."""
