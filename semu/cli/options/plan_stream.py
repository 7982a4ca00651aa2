"""Options of ``semu plan RUN --stream``, the simulated training loop."""

from __future__ import annotations

import argparse

EPILOG = """\
--iterations and --stream: a training loop is simulated. Every iteration is planned while the one before it trains:
planning is real and takes the time that it takes here; an iteration takes its simulated time. By default nothing
sleeps: the loop waits for the next plan at most as long as the iteration takes, and skips the rest; --sleep takes its
time. At the deadline the best plan so far is taken, before there is any the heuristic's; the loop waits for that one,
and no plan is slower than it. Only where --deadline ends planning before it is there, a plan that is legal for every
batch is taken, which may be slower. The table shows each iteration's time with its plan, with the heuristic's schedule
and with Megatron-LM's; its order with the recomputation that fits best is compared below the table and in --json.

A stream is a JSONL file with one iteration a line (semu/workload/stream.py tells the format), or a metadata file whose
samples are dealt to the iterations in order. Without one, batches of the run's own kind are drawn: seed, seed+1, ...

  semu plan vlm-s --iterations 100 --time 1 --out out
  semu plan vlm-s --iterations 20 --write-stream metadata.jsonl
  semu plan vlm-s --stream metadata.jsonl --rollouts 200

With --rollouts every search runs to its end, so that the same plans come again; an iteration that would have begun late
is counted as such. Ctrl-C ends the loop: what was trained so far is printed and written (exit 130); a bad line of the
stream does so too (exit 2). With --resume the loop goes on behind the iterations that --out holds.
"""


def add_stream_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the parser of ``semu plan``."""
    group = parser.add_argument_group("a simulated training loop, planned iteration by iteration")
    group.add_argument("--stream", metavar="FILE", help="the batches: JSONL, one iteration a line, or samples")
    group.add_argument(
        "--assign", metavar="METHOD", help="of a metadata file: assign samples to microbatches first (semu assign)"
    )
    group.add_argument(
        "--window",
        type=int,
        metavar="M",
        help="with --assign: samples may be exchanged among M iterations (default: 1)",
    )
    group.add_argument("--iterations", type=int, metavar="N", help="at most so many (default: 100; with --stream, all)")
    group.add_argument("--deadline", type=float, metavar="S", help="planning of an iteration ends after S seconds")
    group.add_argument(
        "--speed", type=float, metavar="X", help="X simulated seconds in a second of planning (default: 1)"
    )
    group.add_argument("--sleep", action="store_true", help="sleep through what is left of iterations that are planned")
    group.add_argument("--resume", action="store_true", help="go on behind the iterations that --out holds")
    group.add_argument("--write-stream", metavar="FILE", help="write the batches as a stream, and stop")
