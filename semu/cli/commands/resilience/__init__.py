"""Commands about long runs under failures."""
