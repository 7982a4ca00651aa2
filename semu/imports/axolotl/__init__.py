"""Configurations of axolotl -> tables of a run file."""
