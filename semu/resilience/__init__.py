"""Long runs under failures: what they cost, and pipelines that survive them (``README.md`` tells the room)."""
