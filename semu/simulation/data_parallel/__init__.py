"""Parameter gathers, gradient reductions and the optimizer step: what data-parallel replicas do together."""
