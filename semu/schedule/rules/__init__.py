"""What generators are made of: patterns, building blocks, the list scheduler."""
