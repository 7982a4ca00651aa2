"""Diffusion transformers for images and video."""
