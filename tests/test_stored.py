"""Kernels that run from machine code on disk, without numba: the same results; numba where anything is otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semu import stored
from semu.stored import Spec, fits

ROOT = Path(__file__).resolve().parents[1]


def run_python(code: str, folder: Path | None, **settings: str) -> Any:
    """What a process prints last, as JSON. ``folder``: of compiled kernels; None: where they are for users."""
    own = {"NUMBA_CACHE_DIR": str(folder)} if folder is not None else {}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "0", **own, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


SIMULATED = """
import json, sys
from semu.cli import main
said = [main([*words, "--json"]) for words in (["simulate", "lm-7b"], ["simulate", "vlm-s"], ["schedules", "lm-7b"])]
print()
print(json.dumps([said, "numba" in sys.modules]))
"""


def test_commands_run_without_numba_once_their_kernels_are_stored() -> None:
    run_python(SIMULATED, None)
    assert run_python(SIMULATED, None) == [[0, 0, 0], False]


FOUND = """
import json
import semu
from semu.runfile import load_run
found = []
for name, changes in (("lm-7b", []), ("vlm-s", ["training.global_batch=16"])):
    report = semu.simulate(load_run(name, changes))
    found.append([report.iteration_time_s.hex(), report.peak_memory_bytes, str(report)])
print(json.dumps(found))
"""


def test_what_is_simulated_without_numba_is_what_numba_simulates() -> None:
    run_python(FOUND, None)
    stored_finds = run_python(FOUND, None)
    numba_finds = run_python("from semu import stored\nstored.read = lambda function: []\n" + FOUND, None)
    assert stored_finds == numba_finds


KERNELS_CALLED = """
import json, sys
import numpy as np
from semu.schedule.kernels import memory_of_orders
from semu.searcher.kernels.bounds import one_machine
from semu.engine.kernels.pipeline_memory import exact_summit
random = np.random.default_rng(5)
heads, bodies, tails = random.random((3, 40))
found = [one_machine(heads, bodies, tails).hex()]
ones, whole = np.sort(random.random(9)), random.integers(1, 99, 9)
found.append(exact_summit(0.1, 0.9, 7, ones, whole, ones, whole, ones, whole))
found.append("numba" in sys.modules)
CHANGE
print(json.dumps([*found, "numba" in sys.modules]))
"""
OTHER_TYPES = """
found.append(one_machine(heads.astype(np.float32), bodies, tails))
heads.flags.writeable = False
found.append(one_machine(heads, bodies, tails).hex() == found[0])
"""
STRIDED = """
found.append(one_machine(np.repeat(heads, 2)[::2], bodies, tails).hex() == found[0])
"""


def test_arguments_of_other_types_are_compiled(tmp_path: Path) -> None:
    code = KERNELS_CALLED.replace("CHANGE", OTHER_TYPES)
    first, second = run_python(code, tmp_path), run_python(code, tmp_path)
    assert first[2] and not second[2]
    assert second[-2:] == [True, False]  # both are stored too
    assert first[:2] + first[3:-1] == second[:2] + second[3:-1]
    for _ in range(2):  # such arrays are never stored
        assert run_python(KERNELS_CALLED.replace("CHANGE", STRIDED), tmp_path)[2:] == [False, True, True]


def flipped(kept: bytes) -> bytes:
    """With one bit of the last machine code changed."""
    return kept[:-900] + bytes([kept[-900] ^ 4]) + kept[-899:]


@pytest.mark.parametrize("damage", ["cut", "bit", "writable by others"])
def test_what_does_not_count_is_compiled(damage: str, tmp_path: Path) -> None:
    code = KERNELS_CALLED.replace("CHANGE", "")
    first = run_python(code, tmp_path)
    files = [*tmp_path.rglob("*.kernel")]
    assert len(files) == 2
    for file in files:
        kept = file.read_bytes()
        if damage == "writable by others":
            file.chmod(0o666)
        else:
            file.write_bytes({"cut": kept[: len(kept) // 2], "bit": flipped(kept)}[damage])
    again = run_python(code, tmp_path)
    assert again[-1] and again[:2] == first[:2]
    assert not run_python(code, tmp_path)[-1]


def test_settings_of_numba_that_change_what_it_compiles_are_heeded(tmp_path: Path) -> None:
    code = KERNELS_CALLED.replace("CHANGE", "")
    first = run_python(code, tmp_path)
    other = run_python(code, tmp_path, NUMBA_BOUNDSCHECK="1")
    assert other[-1] and other[:2] == first[:2]


RAISING = """
import json, sys
import numpy as np
sys.path.insert(0, PLACE)
from dividing import divide
found = [divide(6.0, 3.0), "numba" in sys.modules]
try:
    divide(1.0, 0.0)
except ZeroDivisionError as error:
    found.append(str(error))
import numba
print(json.dumps([*found, numba.njit(lambda a: a + 1)(2), divide(8.0, 4.0)]))
"""


def test_a_stored_kernel_raises_what_it_raised_and_numba_may_come_later(tmp_path: Path) -> None:
    (tmp_path / "dividing.py").write_text(
        "from semu.compiled import kernel\n@kernel\ndef divide(a, b):\n    return a / b\n"
    )
    code = RAISING.replace("PLACE", repr(str(tmp_path)))
    first, second = (run_python(code, tmp_path / "cache") for _ in range(2))
    assert first == [2.0, True, "division by zero", 3, 2.0]
    assert second == [2.0, False, "division by zero", 3, 2.0]


def test_who_may_have_written_a_file(tmp_path: Path) -> None:
    file = tmp_path / "kernel"
    file.touch(mode=0o644)
    own = file.stat()
    assert stored._is_trusted(own)
    others = max(own.st_uid, Path(stored.__file__).stat().st_uid) + 1
    for place, value in ((4, others), (0, own.st_mode | 0o020), (0, own.st_mode | 0o002)):
        fields = [*own]
        fields[place] = value
        assert not stored._is_trusted(os.stat_result(fields))


def test_machine_code_that_calls_what_is_not_there_is_refused() -> None:
    """LLVM ends the process of whoever links such code."""
    linker = stored._linker()
    if linker is None:
        pytest.skip("kernels are not linked here")
    code = stored.Code("entry", (), b"", ("memcpy", "numba_unpickle", "no_such_function"))
    with pytest.raises(ValueError, match=r"^no no_such_function, which"):
        linker.link(run_python, code)


def test_symbols_of_an_object_file() -> None:
    """As LLVM writes it, of a function that calls two others of which it has one."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = """
    declare double @outside(double)
    define double @inside(double %x) { ret double %x }
    define double @both(double %x) {
      %y = call double @outside(double %x)
      %z = call double @inside(double %y)
      ret double %z
    }
    """
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine()
    code = machine.emit_object(llvm.parse_assembly(text))
    assert stored.needed_symbols(code) == ("outside",)
    assert stored.needed_symbols(b"MZ" + code) == ()


def test_what_fits() -> None:
    spec: Spec = (("<f8", 2, True), "int", (("|b1", 1, False), "float"), "bool")
    check = fits(spec)
    table, flags = np.zeros((2, 3)), np.zeros(4, np.bool_)
    flags.flags.writeable = False
    assert check((table, 3, (flags, 1.0), True))
    assert check((table, np.int64(3), (flags, np.float64(1)), np.bool_(False)))
    for other in (
        (table, 3, (flags, 1.0)),
        (table[:, :2], 3, (flags, 1.0), True),
        (np.asfortranarray(table), 3, (flags, 1.0), True),
        (table.astype(np.float32), 3, (flags, 1.0), True),
        (table.astype(">f8"), 3, (flags, 1.0), True),
        (table[0], 3, (flags, 1.0), True),
        (table, 3.0, (flags, 1.0), True),
        (table, True, (flags, 1.0), True),
        (table, np.int32(3), (flags, 1.0), True),
        (table, 3, (flags.copy(), 1.0), True),
        (table, 3, [flags, 1.0], True),
        (table, 3, (flags, 1.0, 1.0), True),
        (table, 3, (flags, 1.0), 1),
    ):
        assert not check(other)


def test_without_llvm_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from semu.searcher.kernels.bounds import one_machine

    monkeypatch.setattr(stored, "_linkers", [None])
    assert stored.read(one_machine.py_func) == []  # type: ignore[attr-defined]
