"""``semu.simulate``, ``prepare``, ``evaluate``, ``search``, ``grid``: of a job, or of what ``semu.load_run`` reads."""
