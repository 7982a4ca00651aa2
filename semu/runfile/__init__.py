"""Run files: a TOML file or the name of a shipped setup, with the command line's overrides, becomes a ``TrainingJob``.

Files:

    schema.py        every table and key of a run file (DESIGN §6), and the check of a file against them
    places.py        where a key stands: ``run.toml:12 parallel.tp``, ``--set parallel.tp``
    limits.py        what a run file may say but this version does not model
    sources.py       reading a file or a setup
    overrides.py     what the command line changes
    resolve.py       all of these and the defaults -> ``RunConfig``
    transformer.py   ``[model.transformer]``
    build.py         resolved tables -> model, batch, ``TrainingJob``
    hf_run.py        a config.json as a RUN: what it leaves open
    choose.py        a cluster and a parallelism that fit
    importing.py     files of other programs -> run file and report
    tables.py        tables that a program made -> ``TrainingJob``
    toml_text.py     writing TOML

``load_run("run.toml", ["parallel.tp=4"])`` is all that most callers need; ``resolve_run`` gives the tables first.
"""

from semu.runfile.config import RunConfig
from semu.runfile.overrides import Overrides
from semu.runfile.places import Places
from semu.runfile.resolve import load_run, resolve_run
from semu.runfile.tables import make_job
from semu.runfile.toml_text import format_toml
from semu.runfile.transformer import TransformerConfig

__all__ = [
    "Overrides",
    "Places",
    "RunConfig",
    "TransformerConfig",
    "format_toml",
    "load_run",
    "make_job",
    "resolve_run",
]
