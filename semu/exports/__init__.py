"""Runs in the words of other programs: ``export``.

Files:

    programs.py              ``PROGRAMS``: the programs; ``export``
    exported.py              ``Exported``: a file, and what it cannot say
    transformer_sizes.py     the sizes of a model that is a plain decoder
    searched.py              what of a searched schedule a program can be told: ``launchable``
    unsaid.py                what a file cannot say, found by reading it back
    megatron.py              arguments of Megatron-LM
    torchtitan.py            a configuration of torchtitan
    nemo.py                  a configuration of Megatron-Bridge
    deepspeed.py             a configuration of DeepSpeed
"""

from semu.exports.exported import Exported
from semu.exports.programs import PROGRAMS, difference, export

__all__ = ["PROGRAMS", "Exported", "difference", "export"]
