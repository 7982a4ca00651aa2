"""``DrillReport``: what happened in a drill, and how near its end is to that of a run without failures."""

from __future__ import annotations

import json
from pathlib import Path

from semu.executor.drill.orders import Ready
from semu.files import make_folder, write_text
from semu.records import dataclass
from semu.units import fit_lines, format_bytes, format_time


@dataclass
class Recovery:
    """A reconfiguration.

    Attributes:
        steps: optimizer steps done before it. gone, joined: nodes. nodes: that go on. redone: whether an iteration
            in flight was given up, and is done again.
        first_notice_s, notice_s: from the moment when the master saw a node go until the first, the last of the others
            had noticed [s]. arrange_s: composing, assigning nodes [s].
        connect_s, build_s, copy_s: meeting, building chunks, copying, of the slowest node [s]. copied_bytes: of all
            nodes. again_s: from the failure until the next iteration was done [s]; 0: none was. since_s: of the failure
            [s of ``time.monotonic``].
    """

    steps: int
    gone: tuple[int, ...]
    joined: tuple[int, ...]
    nodes: int
    redone: bool
    first_notice_s: float
    notice_s: float
    arrange_s: float
    since_s: float
    connect_s: float = 0.0
    build_s: float = 0.0
    copy_s: float = 0.0
    copied_bytes: int = 0
    again_s: float = 0.0

    def add(self, ready: Ready) -> None:
        """A node has what it needs."""
        for name in ("connect_s", "build_s", "copy_s"):
            setattr(self, name, max(getattr(self, name), getattr(ready, name)))
        self.copied_bytes += ready.received_bytes

    def lines(self) -> list[str]:
        """For people."""
        who = [f"node {node} {how}" for how, nodes in (("gone", self.gone), ("back", self.joined)) for node in nodes]
        again = ", the iteration begun is done again" if self.redone else ""
        spans = (
            ("noticed by all within", self.notice_s),
            ("composed", self.arrange_s),
            ("met", self.connect_s),
            ("built", self.build_s),
            (f"copied {format_bytes(self.copied_bytes)}", self.copy_s),
        )
        return [
            f"behind step {self.steps}: {', '.join(who) or 'nobody gone'}; {self.nodes} nodes go on{again}",
            "  " + ", ".join(f"{name} {format_time(value)}" for name, value in spans),
            *([f"  {format_time(self.again_s)} from the failure to the next step"] if self.again_s else []),
        ]

    def to_json(self) -> dict[str, object]:
        """In plain numbers."""
        return {name: value for name, value in vars(self).items() if name != "since_s"}


@dataclass(frozen=True)
class Stopped:
    """Why training could not go on.

    Attributes:
        reason: in words. steps: of the state. nodes: that were left. files: their state.
    """

    reason: str
    steps: int
    nodes: tuple[int, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class DrillReport:
    """What a drill showed.

    Attributes:
        title: of the plan. backend: ``gloo`` or ``fake``. nodes: at the beginning. iterations: asked for.
        losses: of every iteration that was done. recoveries: in order. layers: that were compared.
        loss_error, state_error: largest difference of losses, of parameters and optimizer state, from those of the
            model in one piece that nothing interrupts, over the largest number. iteration_s: median [s].
        stopped: why it ended early; None: it did not.
    """

    title: str
    backend: str
    nodes: int
    iterations: int
    losses: tuple[float, ...]
    recoveries: tuple[Recovery, ...]
    layers: int
    loss_error: float
    state_error: float
    iteration_s: float
    stopped: Stopped | None

    def to_json(self) -> dict[str, object]:
        """In plain numbers."""
        return {
            **vars(self),
            "losses": list(self.losses),
            "recoveries": [one.to_json() for one in self.recoveries],
            "stopped": None if self.stopped is None else vars(self.stopped),
        }

    def __repr__(self) -> str:
        ends = f"{self.losses[0]:.9g} to {self.losses[-1]:.9g}" if self.losses else "none"
        lines = [
            f"{len(self.losses)} of {self.iterations} iterations on {self.nodes} nodes ({self.backend}), "
            f"{format_time(self.iteration_s)} each",
            f"loss {ends}; from the model in one piece without failures {self.loss_error:.1e}",
            f"{self.layers} layers: parameters and optimizer state within {self.state_error:.1e} of it",
        ]
        lines += [line for one in self.recoveries for line in ("", *one.lines())]
        if self.stopped is not None:
            lines += ["", f"stopped behind step {self.stopped.steps}: {self.stopped.reason}"]
            lines += [f"state written to {file}" for file in self.stopped.files]
        return fit_lines("\n".join(lines))

    def save(self, folder: str | Path) -> list[Path]:
        """Write ``drill.json``.

        Raises:
            ConfigError: it cannot be written.
        """
        return [write_text(make_folder(Path(folder)) / "drill.json", json.dumps(self.to_json(), indent=2) + "\n")]
