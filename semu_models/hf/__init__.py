"""Models from HuggingFace ``config.json`` files.

Files:

    document.py   the file: JSON, and files that configure no model
    dialect.py    how the configurations of a model type are spelt, as data
    common.py     keys that all model types share
    values.py     canonical fields with the places of their keys
    entries.py    the keys of a file, at their places
    reader.py     file and tables -> values and a report; unknown keys are refused
    reading.py    the report: understood, defaulted, ignored
    load.py       ``load_hf``
    refused.py    model types that are known and not modelled, and what to write instead
    registry.py   dialects by model type
    text.py, gpt.py, moe.py ...   the dialects
"""

from semu.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
