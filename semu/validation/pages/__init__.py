"""Pages of validations: ``published``, many runs; ``own_run``, a run of the user beside its log or trace."""
