"""``read_measurements``: reads CSV tables, output of nccl-tests, traces of torch.profiler; their content decides."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from semu.errors import ConfigError
from semu.fitting.samples import Refusal, Sample
from semu.hardware.known_devices import is_device
from semu.records import dataclass

EXPECTED = "a CSV of the schemas in semu/fitting/README.md, output of nccl-tests, or a trace of torch.profiler"
_OVER_NODES = "link.nic.all_to_all"
_TWO_PORTS = "an all-to-all over nodes uses two ports at once: not fitted"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was read.

    Attributes:
        name: of the file, with as many folders as it takes to tell the files apart. sha256: of its bytes.
        rows: number of rows of the device. software: software and date of the measurement; None: not stated.
    """

    name: str
    sha256: str
    rows: int
    software: str | None = None


@dataclass(frozen=True)
class Measurements:
    """The rows of some files.

    Attributes:
        samples: of the device. refusals: rows of the device that are left out, with reasons.
        others: other device -> number of its rows. files: that were read.
    """

    samples: tuple[Sample, ...]
    refusals: tuple[Refusal, ...]
    others: dict[str, int]
    files: tuple[SourceFile, ...]


def read_measurements(paths: Sequence[str | os.PathLike[str]], profile: str, *, nodes: int = 1) -> Measurements:
    """Read files of measurements.

    Args:
        paths: the files. profile: name of the device's profile. Rows of other devices are only counted; a file that
            names no device (nccl-tests, traces, a table without a column ``device``) counts as one of this device.
        nodes: number of nodes of an output of nccl-tests that does not name the hosts.
    Raises:
        ConfigError: a file that cannot be read, another format, times that are not positive, units that do not agree,
            a trace without shapes, a file given twice.
    """
    from semu.files import read_source
    from semu.fitting.readers.nccl import is_nccl, read_nccl
    from semu.fitting.readers.software import folder_software, nccl_software, trace_software
    from semu.fitting.readers.tables import read_table
    from semu.fitting.readers.trace import is_trace, read_trace

    samples: list[Sample] = []
    refusals: list[Refusal] = []
    others: dict[str, int] = {}
    files: list[SourceFile] = []
    for path, name in zip(paths, _names(paths), strict=True):
        content = read_source(path, EXPECTED)
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        for file in files:
            if file.sha256 == digest:
                raise ConfigError("the same measurements twice", where=name, expected="each once", got=file.name)
        software = None
        if is_trace(content):
            read, refused = read_trace(path, profile, name=name)
            software = trace_software(content)
        else:
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    "not a text file", where=name, expected=EXPECTED, got=f"byte {error.start}"
                ) from error
            if is_nccl(text):
                read, refused = read_nccl(text, name, profile, nodes=nodes)
                software = nccl_software(text)
            elif text.lstrip()[:1] in ("{", "["):  # a line of JSON is no header, however long it is
                got = "JSON without traceEvents, and without results of nccl-tests"
                raise ConfigError("not a file of measurements", where=name, expected=EXPECTED, got=got)
            else:
                read, refused = read_table(text, name, profile)
                software = folder_software(Path(path))
        of_device = [sample for sample in read if is_device(sample.device, profile)]
        refused += [Refusal(item.where, _TWO_PORTS, profile) for item in of_device if item.section == _OVER_NODES]
        taken = [item for item in of_device if item.section != _OVER_NODES]
        for sample in read:
            if not is_device(sample.device, profile):
                others[sample.device] = others.get(sample.device, 0) + 1
        samples += taken
        refusals += [item for item in refused if item.device is None or is_device(item.device, profile)]
        files.append(SourceFile(name, digest, len(taken), software))
    return Measurements(tuple(samples), tuple(refusals), dict(sorted(others.items())), tuple(files))


def _names(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """A short name for each file, with as many folders as it takes to tell the files apart."""
    parts = [Path(path).absolute().parts for path in paths]
    result = []
    for path in parts:
        count = 1
        while count < len(path) and sum(other[-count:] == path[-count:] for other in set(parts)) > 1:
            count += 1
        result.append("/".join(path[-count:]))
    return result
