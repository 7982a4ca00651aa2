"""Configurations as leaves: every value is found under its path, with the line on which it, or its key, stands."""

from __future__ import annotations

import pytest

from semu.imports.documents import read_document

YAML = """\
first: v1

# a comment
table:
  inner: v2
  list:
    - v3
    - v4
tables:
  - name: v5

    kind: v6
  - name: v7
rows:
  - [v8, v9]
  -
    - v10
flow: {one: v11,
  two: v12}
twice: ${table.inner}
"""
LINES = {
    "first": 1,
    "table.inner": 5,
    "table.list": 6,
    "tables.0.name": 10,
    "tables.0.kind": 12,
    "tables.1.name": 13,
    "rows.0": 15,
    "rows.1": 17,
    "flow.one": 18,
    "flow.two": 19,
    "twice": 20,
}


@pytest.mark.parametrize("above", [0, 3])
def test_leaves_of_yaml_have_the_lines_on_which_they_stand(above: int) -> None:
    pytest.importorskip("yaml")
    found = read_document("# above\n" * above + YAML, "some.yaml")
    assert {path: line for path, (_, line) in found.leaves.items()} == {
        path: line + above for path, line in LINES.items()
    }
    assert found.leaves["rows.0"][0] == ("v8", "v9") and found.leaves["rows.1"][0] == ("v10",)
    assert found.leaves["twice"][0] == ("v2",)
    for path, (words, line) in found.leaves.items():
        text = YAML.splitlines()[line - above - 1]
        assert words[0] in text or path.rpartition(".")[2] in text


def test_references_are_followed_as_far_as_they_go_and_no_further() -> None:
    pytest.importorskip("yaml")
    chain = "".join(f"k{number}: ${{k{number + 1}}}\n" for number in range(5)) + "k5: end\n"
    leaves = read_document(chain, "some.yaml").leaves
    assert {words for words, _ in leaves.values()} == {("end",)}
    ring = read_document("a: ${b}\nb: ${a}\nc: ${nowhere}\n", "some.yaml").leaves
    assert ring["a"][0][0].startswith("${") and ring["c"][0] == ("${nowhere}",)
