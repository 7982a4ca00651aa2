"""``sorted_distinct`` is ``numpy.unique``, and commands do without the module that that imports."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.distinct import sorted_distinct


@given(st.lists(st.integers(-4, 4), max_size=12), st.sampled_from(["int64", "int32", "float64", "bool"]))
def test_it_is_numpys(numbers: list[int], dtype: str) -> None:
    array = np.array(numbers, dtype=dtype)
    for shaped in (array, np.tile(array, (2, 1))):
        found, expected = sorted_distinct(shaped), np.unique(shaped)
        assert found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["vlm-s"])
def test_a_simulation_does_not_import_masked_arrays(name: str) -> None:
    code = f"import sys, semu; semu.simulate({name!r}, advice=True); print('numpy.ma' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]
