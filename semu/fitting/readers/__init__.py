"""``read_measurements``: files of measurements -> samples. The content of a file decides its format."""

from semu.fitting.readers.measurements import Measurements, SourceFile, read_measurements

__all__ = ["Measurements", "SourceFile", "read_measurements"]
