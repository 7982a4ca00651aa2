"""What a ``StagePlan`` changes about a compiled job: cuts, parts and variants of chunks."""
