"""Plans of one iteration after another while the one before it trains."""
