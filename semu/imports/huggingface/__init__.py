"""What the programs around HuggingFace's Trainer share: DeepSpeed, accelerate, axolotl and LLaMA-Factory.

Files:

    flags.toml      TrainingArguments of transformers, with the arguments of TRL's scripts
    parts.py        ``Parts``: the settings of several files of one run; their common report
    job.py          ``Job``: a run of the Trainer -> tables of a run file
    engine.py       ``Engine``: what shards the states, and how: DistributedDataParallel, FSDP, or DeepSpeed's ZeRO
    zero.py         a configuration of DeepSpeed -> ``Engine``
    fsdp.py         settings of FSDP -> ``Engine``
    trainer.py      settings of TrainingArguments -> ``Job``
    read.py         a file of TrainingArguments -> tables
"""
