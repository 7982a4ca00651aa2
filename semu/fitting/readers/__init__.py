"""``read_measurements``: files of measurements -> samples. The formats are told apart by their content."""

from semu.fitting.readers.measurements import Measurements, SourceFile, read_measurements

__all__ = ["Measurements", "SourceFile", "read_measurements"]
