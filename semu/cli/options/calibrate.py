"""Options of ``semu calibrate``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import REPEATED, CommandOptions


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILES",
        nargs="+",
        help="CSV tables of microbenchmarks, outputs of nccl-tests, traces of torch.profiler, or one JSON file of "
        "training runs (formats: semu/fitting/README.md)",
    )
    parser.add_argument(
        "--nodes", type=int, default=1, metavar="N", help="nodes of nccl-tests' outputs that name no hosts (default 1)"
    )
    fit = parser.add_argument_group("fitting")
    fit.add_argument(
        "--device", metavar="NAME", help="which device: a profile's name, another name (H100-SXM), or a profile TOML"
    )
    fit.add_argument("-o", "--output", metavar="PROFILE.toml", help="write a profile on top of the device's own")
    fit.add_argument("--update", metavar="PROFILE.toml", help="put the fitted sections into a profile that is there")
    fit.add_argument("--without", **REPEATED, metavar="SOURCE", help="leave a source out; may be repeated")
    fit.add_argument(
        "--beside",
        **REPEATED,
        metavar="SOURCE",
        help="find how a source differs, but let it not make the coefficients; may be repeated",
    )
    fit.add_argument("--date", metavar="YYYY-MM-DD", help="of the profile (default: $SOURCE_DATE_EPOCH, else today)")
    fit.add_argument("--picture", metavar="DIR", help="draw every section: fit against points, and residuals")
    score = parser.add_argument_group("scoring")
    score.add_argument("--score", action="store_true", help="compare --profile with the files, fit nothing")
    score.add_argument("--profile", metavar="FILE|NAME", help="the profile to score")
    score.add_argument(
        "--held-out", action="store_true", help="score only the shapes that the rule of the profile holds out"
    )


CALIBRATE = CommandOptions(
    "make a device profile from measurements, or score one against them",
    "Fit a device's coefficients on measurements of kernels and collectives, and write a profile; or, with --score, "
    "compare a profile with measurements.",
    _add,
)
