"""Models that papers trained, described with ``semu.nn``; none of them knows its parallelism.

One file per family, a frozen configuration beside its module; families that differ in data only are a ``DecoderStyle``
and sizes (``decoder``; ``language`` is what multimodal models ask of them). ``registry`` names the models, ``setups``
the published training configurations. ``semu_models.vlm_m()`` or ``semu_models.build("vlm-m")`` makes a
``semu.nn.Model``; ``semu_models.load_hf("config.json")`` reads one (``hf``).
"""

from semu.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
