"""Configurations of accelerate (``accelerate config``) -> tables of a run file."""
