"""Options of ``semu context``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions, add_changes, add_dump, add_html, add_run

_DESCRIPTION = (
    "Which tokens should every context-parallel rank hold? Every policy on the run's batch: balance, padding, wire "
    "bytes, time in attention, memory, iteration time, and a bound that no policy can beat."
)

_EPILOG = """\
Policies are the words of parallel.cp_balance, masks those of training.attention_mask (semu list masks) or a file of
bits.

examples:
  semu context vlm-m --gpus 128 --mask multimodal --cp 4
  semu context qwen3-8b --gpus 8 --cp 8
  semu context llama-3-8b --cluster h100:4x8 --parallel tp4-cp8 --set training.seq_len=131072 --policies zigzag,lpt
  semu context vlm-s --parallel cp8 --policies zigzag,lpt,local --kinds ring,all_gather,needed,auto
  semu context run.toml --out out --export permutation.npz

exit codes: 0 ok (a policy that cannot deal the batch is listed with the reason), 2 bad input, 70 a defect in semu
"""


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    asked = parser.add_argument_group("what to look at")
    asked.add_argument("--mask", metavar="MASK|FILE", help="in place of training.attention_mask")
    asked.add_argument(
        "--cp", type=int, metavar="N", help="context ranks; replicas become as many as the cluster holds"
    )
    asked.add_argument("--policies", metavar="A,B,...", help="some policies (default: all)")
    asked.add_argument(
        "--kinds",
        metavar="A,B,...",
        help="exchanges of keys, words of parallel.cp_kind, each under every policy (default: the run's, and with"
        " --policies all ring, all_gather and needed)",
    )
    add_changes(parser, seed="of the batch")
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="write context.json, mask.png and report.html")
    add_html(output)
    output.add_argument(
        "--export",
        metavar="FILE.npz",
        help="write permutations, bounds, positions and block masks of the run's policy, or of the only one of"
        " --policies, for a data loader",
    )
    add_dump(output)


CONTEXT = CommandOptions("which tokens context-parallel ranks should hold", _DESCRIPTION, _add, _EPILOG)
