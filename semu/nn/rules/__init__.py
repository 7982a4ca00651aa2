"""Operator rules: one function per operator kind, each with its shape, FLOP, bytes and backward.

A rule appends the forward operator and records how its gradients are made. What a backward operator reads is what the
forward saves. Costs are those of one rank.
"""
