"""Options of every command, and what ``--help`` says."""
