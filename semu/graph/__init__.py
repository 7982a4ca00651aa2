"""Operators, tensors and nested subgraphs: the DAG that describes what runs."""
