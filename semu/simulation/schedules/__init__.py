"""Which schedule a job runs, on which cut, and a job under many schedules."""
