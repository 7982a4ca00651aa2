"""The parts of README.md that commands of seconds make; ``python -m benchmarks.readme`` writes them."""
