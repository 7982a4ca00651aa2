"""What people see of a result: the report and its text, plots, traces."""
