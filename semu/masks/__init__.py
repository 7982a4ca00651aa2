"""Attention masks as spans: who sees whom, the tiles that a kernel computes of it, and how context ranks share them."""
