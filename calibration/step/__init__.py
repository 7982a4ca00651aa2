"""Whole training steps: in torch, measured, and in semu's words."""
