"""Configurations of DeepSpeed (``ds_config.json``) -> tables of a run file."""
