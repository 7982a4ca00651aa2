"""From a job to stage programs: blocks traced and compiled, chunks cut, stages joined."""
