"""Run files: a TOML file or the name of a shipped setup, with the command line's overrides, becomes a ``TrainingJob``.

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
