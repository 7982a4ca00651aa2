"""One file per command of ``semu``."""
