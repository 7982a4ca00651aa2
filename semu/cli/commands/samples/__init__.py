"""Commands that look at samples: one a file."""
