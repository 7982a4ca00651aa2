"""Damages the example files of every reader many times over: python tests/imports/fuzz.py [--count 10000] [READER ...]

A damaged file is read or refused (ConfigError with a place), within ``LONGEST_S``; anything else is printed and fails.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from semu.errors import SemuError
from semu.imports.kinds import PROGRAMS, ReadOptions, program_of

ROOT = Path(__file__).parent
LONGEST_S = 10.0
SNIPPETS = [
    "'", '"', "(", ")", "[", "]", "{", "}", ":", "- ", "\n", "\n  ", "#", "=", "${", "$", "`", "\\", ",", "null",
    "true", "0", "-1", "1e309", "9" * 30, "nan", "\t", "&a ", "*a", "<<: ", "!!python/object:os.system ", "---\n",
    "\x00", "é", "if ", "fi\n", "$(", "'''", "[[", "]]",
]  # fmt: skip


def damaged(draw: random.Random, text: str) -> str:
    """A text with one to three places cut out, repeated or replaced."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice([0, 1, 5, 40, 400]))
        kind = draw.random()
        new = draw.choice(SNIPPETS) if kind < 0.6 else text[at:end] * 2 if kind < 0.8 else ""
        text = text[:at] + new + text[end:]
    return text


def files_of(word: str) -> list[Path]:
    """Example files of a reader."""
    every = [path for path in sorted(ROOT.glob("*/files/*")) if path.is_file()]
    found = []
    for path in every:
        program = program_of(str(path), path.read_text(encoding="utf-8", errors="replace"))
        if program is not None and program.word == word:
            found.append(path)
    return found


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--count", type=int, default=10_000)
    arguments = parser.parse_args()
    failures = 0
    for program in PROGRAMS:
        if arguments.readers and program.word not in arguments.readers:
            continue
        places = files_of(program.word)
        texts = [(path, path.read_text(encoding="utf-8")) for path in places]
        read = refused = 0
        slowest, begin = 0.0, time.perf_counter()
        for number in range(arguments.count if texts else 0):
            draw = random.Random(number)
            path, text = draw.choice(texts)
            text = damaged(draw, text)
            options = ReadOptions(allow_unmodelled=draw.random() < 0.5, defined={"model": "gpt2"}, model="gpt2")
            start = time.perf_counter()
            try:
                program.read(text, str(path), options)
                read += 1
            except SemuError as error:
                refused += 1
                failures += not error.where
            except Exception as error:
                failures += 1
                print(f"{program.word} case {number} of {path.name}: {type(error).__name__}: {error}"[:300])
            slowest = max(slowest, time.perf_counter() - start)
        failures += slowest > LONGEST_S
        seconds = time.perf_counter() - begin
        print(f"{program.word}: {read} read, {refused} refused, slowest {slowest:.2f} s, {seconds:.0f} s in all")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
