"""Whether an execution plan can run, found without running it."""
