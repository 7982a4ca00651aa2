"""Operator rules of mixtures of experts: routing, dispatch, grouped products."""
