"""Arguments of Megatron-LM -> tables of a run file: ``read_megatron``.

Files:

    flags.toml           every argument: what it becomes, why it has no bearing, or that it is not modelled
    flags.py             ``FLAGS``: the same, by spelling and by printed name; vocabularies of tokenizers
    shell_text.py        text of a shell script -> words
    shell_words.py       words -> their expansion; what cannot be known is a named gap
    shell_parts.py, shell_conditions.py    statements, the parts of compound ones, conditions
    shell_run.py         following a script: assignments, conditions, the commands that start Python
    from_script.py       scripts -> arguments and the launcher's cluster size
    from_text.py         logs and YAML files -> arguments
    model_tables.py, parallel_tables.py, training_tables.py    settings -> tables
    read.py              all of these, and the report
"""

from semu.imports.megatron.read import is_megatron, read_arguments, read_megatron

__all__ = ["is_megatron", "read_arguments", "read_megatron"]
