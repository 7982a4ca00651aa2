"""From a timed iteration to its report: figures, breakdown, tables, timeline."""
