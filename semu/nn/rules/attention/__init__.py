"""Operator rules of attention, by kernel."""
