"""``make readme``: write the parts of README.md and docs/ that commands of seconds make, and draw their pictures.

    python -m benchmarks.readme [NAME ...] [--check]

A page marks a part with ``<!-- begin NAME: make readme -->`` and ``<!-- end NAME -->``. A picture is drawn when the
figures that it shows have changed, or when its name is given; their digests are in ``examples/pictures/inputs.json``.
Tutorials and guides to commands are run from top to bottom, and show what they print.
``--check`` changes nothing and names what is stale. Tables of accuracy need the measured data
(``SEMU_DATA``) and two to three minutes; without it they stay as they are. Exit: 0 ok, 1 something is stale, 2 an
unknown name.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.readme._accuracy import draw_accuracy
from benchmarks.readme._parts import PARTS, is_makeable
from benchmarks.readme._pictures import PICTURES
from benchmarks.readme._walk import is_walkable, name_of, walk
from benchmarks.readme._weave import PAGES, WALKED, page_of, part_of, recorded_digests, replace_part, write_digests
from semu.files import write_text


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"parts: {', '.join(PARTS)}; pictures: {', '.join(PICTURES)}; pages: {', '.join(map(name_of, WALKED))}",
    )
    parser.add_argument("--check", action="store_true", help="change nothing, name what is stale")
    options = parser.parse_args(arguments)
    known = (*PARTS, *PICTURES, *map(name_of, WALKED))
    unknown = [name for name in options.names if name not in known]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; expected {', '.join(known)}", file=sys.stderr)
        return 2
    stale = [own for make in (_texts, _walks, _pictures) for own in make(options.names, check=options.check)]
    for name in stale:
        print(f"{'stale' if options.check else 'wrote'}: {name}", file=sys.stderr)
    return 1 if stale and options.check else 0


def _texts(names: Sequence[str], *, check: bool) -> list[str]:
    """Parts whose text has changed; written unless ``check``."""
    stale = []
    chosen = [name for name in PARTS if name in names or not names]
    if left := [name for name in chosen if not is_makeable(name)]:
        print(f"left as they are, no measured data (set SEMU_DATA): {', '.join(left)}", file=sys.stderr)
    for name in [name for name in chosen if name not in left]:
        page = page_of(name, PAGES)
        text = page.read_text(encoding="utf-8")
        before, after = part_of(text, name), PARTS[name]()
        if before != after:
            stale.append(name)
            difference = difflib.unified_diff(
                before.splitlines(), after.splitlines(), page.name, name, lineterm="", n=0
            )
            print("\n".join(difference))
            if not check:
                write_text(page, replace_part(text, name, after))
                if name == "accuracy":
                    draw_accuracy()
    return stale


def _walks(names: Sequence[str], *, check: bool) -> list[str]:
    """Pages that print something else than they show; written unless ``check``."""
    stale = []
    for page in [page for page in WALKED if name_of(page) in names or not names]:
        before = page.read_text(encoding="utf-8")
        if not is_walkable(before):
            print(f"left as it is, no torch: {name_of(page)}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            after = walk(before, Path(folder))
        if before != after:
            stale.append(name_of(page))
            if not check:
                write_text(page, after)
    return stale


def _pictures(names: Sequence[str], *, check: bool) -> list[str]:
    """Pictures whose figures have changed, and those that were asked for; drawn unless ``check``."""
    stale = []
    recorded = recorded_digests()
    for name in [name for name in PICTURES if name in names or not names]:
        digest = PICTURES[name].digest()
        if recorded.get(name) != digest or (name in names and not check):
            stale.append(name)
            if not check:
                PICTURES[name].draw()
                write_digests(recorded := {**recorded, name: digest})
    return stale


if __name__ == "__main__":
    sys.exit(main())
