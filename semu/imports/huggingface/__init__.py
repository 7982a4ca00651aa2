"""What the programs around HuggingFace's Trainer share: DeepSpeed, accelerate, axolotl and LLaMA-Factory.

Files:

    flags.toml      TrainingArguments of transformers, with the arguments of TRL's SFTConfig and scripts
    parts.py        ``Parts``: the settings of several files of one run; their common report
    files.py        the model and the further files that a file names
    engine.py       ``Engine``: what shards the states: DistributedDataParallel, FSDP, or DeepSpeed's ZeRO
    zero.py         a configuration of DeepSpeed -> ``Engine``
    fsdp.py         settings of FSDP -> ``Engine``
    job.py          ``Job``: a run of the Trainer -> tables of a run file
    frozen.py       names of transformers' parameters -> ``[model] frozen``
    trainer.py      settings of TrainingArguments -> ``Job``
    read.py         a file of TrainingArguments -> tables
"""
