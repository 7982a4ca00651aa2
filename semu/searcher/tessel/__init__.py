"""Tessel (HPCA 2024): a repetend by a constraint program, warm-up and cool-down around it."""
