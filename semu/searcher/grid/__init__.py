"""Grid search of parallel configurations: ``semu.grid``.

``space`` holds the axes and what each may be, ``legal`` finds the configurations that exist and says which rule cut the
others, ``bounds`` says how fast and how small a configuration can be at best, ``evaluate_points`` finds what it is
(``semu.evaluate``), ``search`` puts these together, ``store`` keeps results in a file, ``result`` is the table.
"""

from semu.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
