"""What the slow reference takes from semu: records and words, and the few functions that are named here."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent
RECORDS = {
    "semu.graph": "symbols, operators and tensors, which a job's costs are told in",
    "semu.hardware.capabilities": "a device's numbers",
    "semu.hardware.device": "names of streams",
    "semu.hardware.efficiency": "a device's tables",
    "semu.hardware.kinds": "kinds of operators and of numbers",
    "semu.hardware.network": "which GPUs exchange, and the bytes of a collective on the wire",
    "semu.job": "what is asked",
    "semu.nn": "the model: modules, parameters, and what tracing hands on",
    "semu.parallel": "how modules are cut over tensor-parallel ranks",
    "semu.schedule.stage_plan": "a plan, as the user gives it",
    "semu.workload": "samples",
}
"""Rooms of which the reference may import anything but ``CALCULATES``: data, and the model that the user describes."""
CALCULATES = ("semu.hardware.network.cost", "semu.nn.trace.tracing", "semu.nn.trace.autograd")
TRACER = "semu.nn.trace.block.trace_block"
SHARED = {
    "model.py": {TRACER: "test_trace.py compares it with the reference's own tracer"},
    "split.py": {"semu.schedule.Schedule": "an order, as the user may give it"},
    "tape.py": {
        "semu.compile.stage.StageProgram": "the operators of a stage, whose requests are walked one by one",
        "semu.costs.phases.program_of": "which of them a phase runs",
        "semu.schedule.graph.graph_of": "stages and messages of a schedule",
        "semu.schedule.phases.BACKWARD": "a word",
        "semu.schedule.phases.CODE_OF_PHASE": "a word",
        "semu.schedule.phases.FORWARD": "a word",
        "semu.schedule.phases.INPUT": "a word",
        "semu.schedule.problem.Transfer": "a record",
        "semu.simulation.context.TimedJob": "when stages ran, which is compared elsewhere",
        "semu.simulation.memory.changes.issue_order": "the order in which a host issues stages",
        "semu.simulation.transfers.leaving_positions": "which tensors of a carry are handed on",
    },
}
"""All else, by file: name -> why. An entry that is not needed any more fails the test, too."""


def taken_by(path: Path) -> set[str]:
    """Names that a file imports from semu, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "semu":
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "semu"}
    return found


def is_record(name: str) -> bool:
    """Whether a name lies in one of the rooms of data."""

    def lies_in(room: str) -> bool:
        return name == room or name.startswith(f"{room}.")

    return any(map(lies_in, RECORDS)) and not any(map(lies_in, CALCULATES)) and name != TRACER


def test_the_reference_computes_by_itself() -> None:
    files = [path for path in FOLDER.glob("*.py") if not path.name.startswith("test_")]
    assert len(files) > 15
    others = {path.name: {name for name in taken_by(path) if not is_record(name)} for path in files}
    assert {file: names for file, names in others.items() if names} == {
        file: {*names} for file, names in SHARED.items()
    }
