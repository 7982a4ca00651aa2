"""``semu.simulate``, ``semu.search`` and ``semu.grid``: of a job, or of whatever ``semu.load_run`` reads."""
