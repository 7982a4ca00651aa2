"""Pages of the reference, each made from the table that the program itself uses: ``pages``.

The command line comes from the parser, run files from the schema and the table of options, exit codes from the errors,
the lists from ``semu list``, and the Python reference from ``semu.__all__``.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import semu
from semu import errors
from semu.cli import main
from semu.cli.options.every import COMMANDS, LISTS, build_parser
from semu.hardware.cluster import Cluster
from semu.job.declare import ValueKind
from semu.job.training import OPTIONS
from semu.nn import LatentSizes, LoRA
from semu.parallel.config import Overlap, Parallel
from semu.parallel.layout import PipelineLayout
from semu.resilience.options import CheckpointOptions, FailureOptions, PriceOptions, Resilience
from semu.runfile.commented import _HEADS, _SAYS
from semu.runfile.networks import TABLES as NETWORK_TABLES
from semu.runfile.schema import SCHEMA
from semu.runfile.transformer import TransformerConfig
from semu.searcher.assignment.options import AssignmentOptions
from semu_models.multimodal.own import EncoderConfig, ProjectorConfig

GROUPS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "job": ("Describing a job", ("TrainingJob", "Cluster", "Parallel", "Training", "Model")),
    "simulating": ("Simulating", ("simulate", "evaluate", "prepare", "JobCheckpoint", "Report", "Estimate")),
    "choosing": (
        "Searching and comparing",
        ("search", "grid", "what_if", "compare_schedules", "explore_schedules", "context"),
    ),
    "data": ("Samples and microbatches", ("assign", "Assigner")),
    "plans": ("Plans", ("compile_plan", "ExecutionPlan", "Planner")),
    "long-runs": ("Long runs under failures", ("goodput", "pipeline_templates")),
    "graphs": ("Graphs by hand, and errors", ("Graph", "Simulation", "SemuError", "__version__")),
}
"""Page -> its title, and the names of ``semu.__all__`` that it explains."""
MODULES: Mapping[str, str] = {
    "nn": "Modules, layers and functions that models are written with.",
    "workload": "What is read: batches drawn or from files.",
    "schedule": "Pipeline schedules as data, as rules, and on plain numbers.",
    "baselines": "What other systems would choose for a job.",
}
"""Modules of ``semu.__all__``, each with a page of its own."""


def documented() -> set[str]:
    """Names that the reference explains."""
    return {name for _, names in GROUPS.values() for name in names} | set(MODULES)


def pages() -> dict[str, str]:
    """Path of every generated page, in ``docs``, and its Markdown."""
    made = {
        "reference/command-line.md": command_line(),
        "reference/run-file.md": run_file(),
        "reference/exit-codes.md": exit_codes(),
        "reference/shipped.md": shipped(),
        "reference/python/index.md": python_index(),
    }
    for page, (title, names) in GROUPS.items():
        made[f"reference/python/{page}.md"] = python_page(title, names)
    for name, says in MODULES.items():
        made[f"reference/python/{name}.md"] = module_page(name, says)
    return made


# ---------------------------------------------------------------- the command line


def command_line() -> str:
    """Every command with its options, from the parser."""
    _, commands = build_parser()
    lines = ["# Command line", "", _GENERATED.format("the parser (`semu COMMAND --help` prints the same)"), ""]
    lines += ["| command | what it does |", "| --- | --- |"]
    lines += [f"| [`semu {name}`](#semu-{name}) | {_cell(COMMANDS[name].help)} |" for name in commands]
    lines += ["", "Every command also takes:", ""]
    common = ("--json", "--quiet", "--debug")
    some = next(iter(commands.values()))
    lines += _options(
        action for action in some._actions if action.option_strings and action.option_strings[0] in common
    )
    for name, command in commands.items():
        lines += ["", f"## semu {name}", "", _prose(command.description), ""]
        lines += ["```text", *_usage(command).splitlines(), "```", ""]
        for group in command._action_groups:
            actions = [
                action
                for action in group._group_actions
                if action.help is not argparse.SUPPRESS and not {*action.option_strings} & {*common, "-h"}
            ]
            if actions:
                lines += [f"**{(group.title or 'options').capitalize()}**", "", *_options(actions), ""]
        if command.epilog:
            lines += ["```text", command.epilog.strip(), "```"]
    return "\n".join(lines) + "\n"


def _usage(command: argparse.ArgumentParser) -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"  # argparse asks the terminal
    try:
        return command.format_usage().removeprefix("usage: ")
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def _options(actions: Iterable[argparse.Action]) -> list[str]:
    lines = ["| option | meaning |", "| --- | --- |"]
    for action in actions:
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        value = " ".join(value) if isinstance(value, tuple) else str(value)
        words = ", ".join(action.option_strings) or value
        shown = f"{words} {value}".strip() if action.option_strings and action.nargs != 0 else words
        choices = "" if action.choices is None else f"; one of {', '.join(map(str, action.choices))}"
        said = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        lines.append(f"| {_cell(f'`{shown}`')} | {_cell(said + choices)} |")
    return lines


# ---------------------------------------------------------------- run files

_CLASSES: Mapping[str, type[Any]] = {
    "parallel": Parallel,
    "overlap": Overlap,
    "parallel.layout": PipelineLayout,
    "cluster": Cluster,
    "model.lora": LoRA,
    "model.transformer": TransformerConfig,
    "model.transformer.mla": LatentSizes,
    "model.llm": TransformerConfig,
    "model.llm.mla": LatentSizes,
    "model.encoder": EncoderConfig,
    "model.projector": ProjectorConfig,
    "assignment": AssignmentOptions,
    "resilience": Resilience,
    "resilience.checkpoint": CheckpointOptions,
    "resilience.failures": FailureOptions,
    "resilience.price": PriceOptions,
    **{f"model.{path}": kind for path, kind in NETWORK_TABLES.items()},
}
"""Table -> the class whose fields are its keys, and whose docstring says what they mean."""
_FREE: Mapping[str, str] = {
    "batch": "What is read. `kind` says which batch is drawn or read from a file; the other keys are the arguments of "
    "that function of [`semu.workload`](python/workload.md).",
    "parallel": "Without this table tp = pp = 1, and dp fills the GPUs: no layout is sought (`semu init NAME` and "
    "`semu grid` find one). `[parallel.modules.NAME]` gives a modality module sizes of its own "
    "([modules](../explanation/modules.md)).",
    "cluster": "`[cluster.override]` changes any number of the device's profile.",
    "training": '`[schedule.NAME]` is a rule of your own, which `training.schedule = "NAME"` takes '
    "([schedules](../explanation/schedules.md#rules)).",
    "model": "Exactly one of `name`, `hf_config`, `transformer`, `encoder` with `llm`, or one of the other networks.",
    "cost": "Adds prices to the report.",
}

_MEANINGS: Mapping[str, str] = {
    "model.hf_ignore": "Keys of `hf_config` that semu does not know and that may be passed over.",
    "model.dit.vae": "The autoencoder runs in the loop too, frozen as `model.frozen` says.",
    "model.unet.vae": "The autoencoder runs in the loop too, frozen as `model.frozen` says.",
    "cost.gpu_hour_usd": "Price of a GPU for an hour [USD].",
    "cost.watt": "What a GPU draws, with its share of the host.",
}
"""Keys that are no field of a class."""


def run_file() -> str:
    """Every table and key of a run file, from the schema and the table of training options."""
    lines = ["# Run files", "", _GENERATED.format("the schema that run files are checked against"), ""]
    lines += [
        "A run file is TOML. `semu init -o run.toml` writes one with a comment on every key, and "
        "`--set TABLE.KEY=VALUE` sets any key on the command line. An unknown key, or a value of another type, is an "
        "error that names the line.",
        "",
    ]
    for table, kinds in SCHEMA.items():
        lines += [f"## [{table}]", ""]
        lines += [part for text in (_HEADS.get(table), _FREE.get(table)) if text for part in (text, "")]
        if not kinds:
            continue
        rows = list(_training_rows() if table == "training" else _rows(table, kinds))
        lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _training_rows() -> Iterator[str]:
    for row in OPTIONS:
        if row.value.kind is None:
            continue
        words = " \\| ".join(f"`{word}`" for word in row.value.words) or row.value.kind.value
        unit = f" [{row.unit}]" if row.unit else ""
        yield f"| `{row.name}` | {words} | {_default(row.default)} | {_cell(row.doc)}{unit} |"


def _rows(table: str, kinds: Mapping[str, ValueKind]) -> Iterator[str]:
    kind = _CLASSES.get(table)
    said = {} if kind is None else attributes(kind)
    defaults = {} if kind is None else _defaults(kind)
    for key, value in kinds.items():
        meaning = _SAYS.get(f"{table}.{key}") or _MEANINGS.get(f"{table}.{key}") or said.get(key, "")
        if value is ValueKind.TABLE:
            name = f"{table}.{key}"
            meaning = f"[`[{name}]`](#{_slug(name)})" if name in SCHEMA else meaning or f"`[{name}]`"
        else:
            meaning = _cell(meaning)
        yield f"| `{key}` | {value.value} | {_default(defaults.get(key, _MISSING))} | {meaning} |"


_MISSING = object()


def _defaults(kind: type[Any]) -> dict[str, Any]:
    known = inspect.signature(kind).parameters.values()
    return {item.name: _MISSING if item.default is item.empty else item.default for item in known}


def _default(value: object) -> str:
    if value is _MISSING or value is None or type(value).__name__.startswith("_HAS"):
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, int | float | str) else ""


def attributes(kind: type[Any]) -> dict[str, str]:
    """What the docstrings of a dataclass and of its bases say of its fields: several may share a line, or an entry."""
    inherited = [attributes(base) for base in kind.__bases__ if base is not object]
    return {name: text for one in [*inherited, _own_attributes(kind)] for name, text in one.items()}


def _own_attributes(kind: type[Any]) -> dict[str, str]:
    text = inspect.getdoc(kind) or ""
    part = re.search(r"(?ms)^(?:Attributes|Args):\n(.*?)(?=^\w+:\n|\Z)", text)
    names = [*inspect.signature(kind).parameters]
    if part is None:
        return {}
    body = " ".join(part[1].split())
    one = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    marks = list(re.finditer(rf"(?:^|(?<=[.;] )|(?<=\) ))((?:{one})(?:, (?:{one}))*): ", body))
    ends = [mark.start() for mark in marks[1:]] + [len(body)]
    return {
        name: body[mark.end() : end].strip().replace("``", "`")
        for mark, end in zip(marks, ends, strict=True)
        for name in mark[1].split(", ")
    }


# ---------------------------------------------------------------- exit codes, lists


def exit_codes() -> str:
    """The tree of errors, and what a shell sees."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.SemuError)]
    lines = ["# Exit codes", "", _GENERATED.format("`semu.errors`"), ""]
    lines += ["| code | error | meaning |", "| --- | --- | --- |", "| 0 | | The command did what was asked. |"]
    for kind in sorted(kinds, key=lambda own: (own.exit_code, -len(own.__subclasses__()))):
        if kind is errors.SemuError:
            continue
        first = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).replace("``", "`")
        lines.append(f"| {kind.exit_code} | `semu.errors.{kind.__name__}` | {_cell(first)} |")
    lines += ["| 130 | | Interrupted with Ctrl-C; the best result so far is written. |", ""]
    lines += [
        "A run that does not fit (3) still prints its report, and with `--json` the whole document: `fits` is false, "
        "and `nearest_fit` lists the changes with which it fits, if any were found "
        "([out of memory](../tutorials/out-of-memory.md)). `semu grid` and `semu search` exit with 3 where nothing "
        "fits. With `--json` any other error is one document on stdout: "
        '`{"error": {"kind", "message", "where", "expected", "got", "nearest"}}`. '
        "In Python the same errors are exceptions, all of them kinds of `semu.SemuError`.",
    ]
    return "\n".join(lines) + "\n"


def shipped() -> str:
    """What ``semu list`` prints."""
    lines = ["# What ships", "", _GENERATED.format("`semu list`"), ""]
    for name, says in LISTS.items():
        printed = io.StringIO()
        before = os.environ.get("COLUMNS")
        os.environ["COLUMNS"] = "120"
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                main(["list", name])
        finally:
            del os.environ["COLUMNS"]
            if before is not None:
                os.environ["COLUMNS"] = before
        lines += [
            f"## {name.capitalize()}",
            "",
            f"{says[0].upper()}{says[1:]}.",
            "",
            "```text",
            printed.getvalue().rstrip(),
        ]
        lines += ["```", ""]
    return "\n".join(lines)


# ---------------------------------------------------------------- Python


def python_index() -> str:
    """Every name of ``semu.__all__`` with its first line, and where it is explained."""
    lines = ["# Python", "", "Every name of `semu.__all__`. Names are imported on first use.", ""]
    lines += ["| name | what it is |", "| --- | --- |"]
    pages_of = {name: f"{page}.md#semu.{name}" for page, (_, names) in GROUPS.items() for name in names}
    for name in sorted(semu.__all__, key=str.lower):
        says = MODULES.get(name) or _first_line(getattr(semu, name))
        page = pages_of.get(name, f"{name}.md")
        lines.append(f"| [`semu.{name}`]({page}) | {_cell(says)} |")
    return "\n".join(lines) + "\n"


def _first_line(value: object) -> str:
    if isinstance(value, str):
        return "The version."
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()).replace("``", "`")


def python_page(title: str, names: Iterable[str]) -> str:
    """Names of ``semu``, explained by their docstrings."""
    parts = [f"# {title}"]
    for name in names:
        if name == "__version__":
            parts.append('## `semu.__version__`\n\n<a id="semu.__version__"></a>The version, as text.')
        else:
            parts.append(f"::: semu.{name}\n    options:\n      heading: semu.{name}\n      toc_label: {name}")
    return "\n\n".join(parts) + "\n"


def module_page(name: str, says: str) -> str:
    """All names of a module."""
    module = getattr(semu, name)
    parts = [f"# semu.{name}", says]
    for own in dir(module):
        value = getattr(module, own)
        if own.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        home = f"{value.__module__}.{value.__qualname__}"
        if not home.startswith("semu."):
            continue
        heading = f"semu.{name}.{own}"
        parts.append(
            f"::: {home}\n    options:\n      heading: {heading}\n      toc_label: {own}\n      members: false"
        )
    return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------- words

_GENERATED = "*Generated from {} when the site is built.*"


def _prose(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    """Text in a cell of a table: nothing in it is Markdown but code."""
    text = " ".join(text.replace("``", "`").split())
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts = [text.replace("`", "'")]
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([\[\]<>*_|])", r"\\\1", parts[i]).replace("\\<", "&lt;").replace("\\>", "&gt;")
    for i in range(1, len(parts), 2):
        parts[i] = parts[i].replace("|", "\\|")
    return "`".join(parts)


def _slug(name: str) -> str:
    return re.sub(r"[^\w-]", "", name.lower())
