"""Strategies of long runs, one file each; ``registry`` lists them."""
