"""Options as other programs spell them, and options that are keys of a run file: both become options of the command."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence

from semu.errors import ConfigError, shown, unknown_name

_AXES = {
    "tp": ("tensor", "tensor-model"),
    "pp": ("pipeline", "pipeline-model"),
    "vpp": ("virtual-pipeline", "virtual-pipeline-model"),
    "cp": ("context",),
    "dp": ("data",),
    "ep": ("expert", "expert-model"),
    "etp": ("expert-tensor",),
}
_WORDS = {
    "--gpus": ("num-gpus", "ngpus", "ngpu", "n-gpus", "num-processes", "world-size"),
    "--global-batch": ("train-batch-size", "global-train-batch-size"),
    "--micro-batch": (
        "local-batch-size",
        "train-micro-batch-size-per-gpu",
        "per-device-train-batch-size",
        "per-device-batch-size",
        "device-batch-size",
    ),
    "--seq-len": (
        "max-seq-len",
        "max-seq-length",
        "max-length",
        "sequence-len",
        "context-length",
        "block-size",
        "cutoff-len",
        "model-max-length",
        "encoder-seq-length",
    ),
    "--precision": ("mixed-precision", "torch-dtype"),
    "--vpp": ("vp", "num-virtual-stages-per-pipeline-rank"),
    "--schedule": ("pipeline-schedule", "pipeline-parallel-schedule"),
    "--lora-rank": ("lora-r",),
    "--gpu-hour-usd": ("price", "gpu-price"),
    "--out": ("output", "output-dir"),
}

SPELLINGS: Mapping[str, str] = {
    "--device": "--cluster",
    "--gpu": "--cluster",
    "--nodes": "--gpus",
    "--batch": "--global-batch",
    "--batch-size": "--global-batch",
    "--global-batch-size": "--global-batch",
    "--gbs": "--global-batch",
    "--mbs": "--micro-batch",
    "--micro-batch-size": "--micro-batch",
    "--seq": "--seq-len",
    "--seq-length": "--seq-len",
    "--sequence-length": "--seq-len",
    "--dtype": "--precision",
    "--zero-stage": "--zero",
    "--lora": "--lora-rank",
    **{
        f"--{word}-parallel{ending}": f"--{axis}"
        for axis, words in _AXES.items()
        for word in words
        for ending in ("", "-size", "-degree")
    },
    **{f"--{word}": ours for ours, words in _WORDS.items() for word in words},
}
"""Options of other programs, and what says the same here, with hyphens (``canonical``). ``--gpu 8`` is ``--gpus 8``."""

NODES = ("--nodes", "--nnodes", "--num-nodes", "--num-machines")
"""Nodes, of 8 GPUs where ``PER_NODES`` does not say others."""
PER_NODES = ("--gpus-per-node", "--nproc-per-node", "--num-gpus-per-node", "--devices-per-node")
"""GPUs of a node, beside ``--nodes`` or ``--gpus``."""

_SWITCH = ("true", "false")
_RECOMPUTE = {"": "full", "true": "full", "false": "none", "none": "none", "full": "full", "selective": "selective"}
_CHECKPOINTING = {value: f"training.recompute={word}" for value, word in _RECOMPUTE.items()}
VALUES: Mapping[str, Mapping[str, str]] = {
    "--fsdp": {"": "parallel.zero=3"},
    "--ddp": {"": "parallel.zero=0"},
    **{f"--zero{stage}": {"": f"parallel.zero={stage}"} for stage in (1, 2, 3)},
    **{f"--{precision}": {"": f"training.precision={precision}"} for precision in ("bf16", "fp16", "fp8")},
    "--float8": {"": "training.precision=fp8"},
    "--use-distributed-optimizer": {"": "parallel.zero=1"},
    **{
        flag: {"": f"{key}=true", **{value: f"{key}={value}" for value in _SWITCH}}
        for flag, key in (
            ("--sequence-parallel", "parallel.sequence_parallel"),
            ("--overlap-grad-reduce", "overlap.grad_reduce"),
            ("--overlap-param-gather", "overlap.param_gather"),
            ("--tp-comm-overlap", "overlap.tensor_parallel"),
        )
    },
    "--recompute-activations": {"": "training.recompute=selective"},
    "--recompute-granularity": {word: f"training.recompute={word}" for word in ("full", "selective")},
    **{
        f"--{word}": _CHECKPOINTING
        for word in ("gradient-checkpointing", "activation-checkpointing", "enable-activation-checkpointing", "ac")
    },
    "--sharding-strategy": {
        "full_shard": "parallel.zero=3",
        "shard_grad_op": "parallel.zero=2",
        "no_shard": "parallel.zero=0",
    },
}
"""Options of other programs whose values are words of theirs: the key that each sets; ``""``: no value."""


def run_keys() -> dict[str, str]:
    """Options that are keys of a run file: ``--seq-len`` -> ``training.seq_len``, ``--tp`` -> ``parallel.tp``."""
    from semu.job.training import OPTIONS
    from semu.parallel.axes import AXES

    keys = {f"--{option.name.replace('_', '-')}": f"training.{option.name}" for option in OPTIONS}
    keys |= {f"--{axis}": f"parallel.{axis}" for axis in (*AXES, "zero")}
    return keys | {"--lora-rank": "model.lora.rank"}


def canonical(flag: str) -> str:
    """An option as the tables have it: ``-tp``, ``--max_seq_length`` and ``--training.seq_len`` with two hyphens,
    hyphens, and without the table."""
    name = flag.lstrip("-").rpartition(".")[2].replace("_", "-")
    return f"--{name}" if flag.startswith("--") or re.fullmatch(r"-[a-z]{2,}[\w-]*", flag) else flag


def as_ours(words: Sequence[str], unknown: Sequence[str], options: Collection[str]) -> list[str] | None:
    """A command line in the command's own options.

    Args:
        unknown: words that the command's parser did not know. options: those of the command.
    Returns:
        The words, with spellings of others replaced and keys of a run file as ``--set KEY=VALUE``; None where
        nothing of that kind is among ``unknown``.
    Raises:
        ConfigError: an option without a value, a device or a number of GPUs that is told twice, or that is not
            whole nodes.
    """
    keys = run_keys() if "--set" in options else {}
    theirs = {word.partition("=")[0] for word in unknown}
    theirs = {
        flag
        for flag in theirs
        for name in [canonical(flag)]
        if SPELLINGS.get(name, name) in keys
        or SPELLINGS.get(name) in options
        or ("--gpus" in options and name in NODES)
        or (keys and (name in VALUES or name in PER_NODES))
    }
    if not theirs:
        return None
    found: list[str] = []
    sizes: dict[str, int] = {}
    left = [*reversed(words)]
    while left:
        flag, equals, value = (word := left.pop()).partition("=")
        if flag not in theirs:
            found.append(word)
            continue
        name = canonical(flag)
        if name in VALUES and (key := _valued(flag, value if equals else None, left, is_key=name in keys)) is not None:
            found += ["--set", key]
            continue
        ours = SPELLINGS.get(name, name)
        if not equals:
            value = left.pop() if left else "--"
        if not value or value.startswith("--"):
            raise ConfigError(f"{flag} needs a value", where=flag, expected=f"{flag} VALUE, for {keys.get(ours, ours)}")
        if name == "--gpu" and value.isdecimal() and "--gpus" in options:
            ours = "--gpus"
        if name in NODES or name in PER_NODES:
            sizes[NODES[0] if name in NODES else PER_NODES[0]] = _number(flag, value)
        else:
            found += ["--set", f"{keys[ours]}={value}"] if ours in keys else [ours, value]
    _check_told_once(found)
    found = _with_nodes(found, sizes, has_keys=bool(keys))
    _check_told_once(found)
    return found


def _valued(flag: str, given: str | None, left: list[str], *, is_key: bool) -> str | None:
    """The key that an option of ``VALUES`` sets; its value is taken from the words that are left.

    Args:
        given: what stands behind its ``=``. is_key: it is an option with a value of its own as well.
    Returns:
        ``KEY=VALUE``; None: it has such a value.
    Raises:
        ConfigError: none of its words.
    """
    table = VALUES[canonical(flag)]
    following = left[-1] if left and not left[-1].startswith("-") else None
    if given is None and "" in table and (following is None or following.lower() not in table) and not is_key:
        return table[""]
    if given is None and following is None and "" in table:
        return table[""]
    word = following if given is None else given
    if word is not None and word.lower() in table:
        if given is None:
            left.pop()
        return table[word.lower()]
    if is_key:
        return None
    legal = [name for name in table if name]
    raise unknown_name("value", word or "nothing", legal, where=flag)


def _check_told_once(words: Sequence[str]) -> None:
    for option, what in (("--cluster", "device"), ("--gpus", "number of GPUs")):
        if sum(word.partition("=")[0] == option for word in words) > 1:
            same = [option, *(flag for flag in SPELLINGS if SPELLINGS[flag] == option)]
            raise ConfigError(f"the {what} is told twice", where=option, expected=f"one of {', '.join(same)}")


def _number(flag: str, value: str) -> int:
    """So many nodes, or GPUs of one."""
    if not value.isdecimal() or not int(value):
        what = "nodes" if canonical(flag) in NODES else "GPUs"
        raise ConfigError(f"no number of {what}", where=flag, expected="at least 1", got=value, nearest=1)
    return int(value)


def _taken(words: list[str], option: str) -> str | None:
    """The value of an option, which is taken out of the words; None: it is not among them."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            del words[at]
            return value if equals or at == len(words) else words.pop(at)
    return None


def _with_nodes(words: Sequence[str], sizes: Mapping[str, int], *, has_keys: bool) -> list[str]:
    """The words with what ``--nodes`` and ``--gpus-per-node`` say: as ``--gpus``, or as keys of the cluster."""
    from semu.hardware.cluster import PER_NODE

    if not sizes:
        return [*words]
    cluster, rest = _taken([*words], "--cluster"), [*words]
    if cluster is not None and ":" in cluster:
        expected = f"--cluster DEVICE, or no {next(iter(sizes))}"
        raise ConfigError("the number of GPUs is told twice", where="--cluster", expected=expected, got=cluster)
    nodes, per_node, told = sizes.get("--nodes"), sizes.get(PER_NODES[0]), _taken(rest, "--gpus")
    if per_node is None and (told is None or not has_keys):
        return [*words, "--gpus", str((nodes or 0) * PER_NODE)]
    if told is not None:
        gpus = _number("--gpus", told)
        if nodes is not None and per_node is not None and nodes * per_node != gpus:
            expected = str(nodes * per_node)
            raise ConfigError("the number of GPUs is told twice", where="--gpus", expected=expected, got=gpus)
        by = nodes or per_node or gpus
        if gpus % by:
            what = f"nodes of {by} GPUs" if nodes is None else f"{by} equal nodes"
            nearest = max(gpus // by, 1) * by
            raise ConfigError(f"no {what}", where="--gpus", expected=f"a multiple of {by}", got=gpus, nearest=nearest)
        nodes, per_node = nodes or gpus // by, per_node or gpus // by
    said = {"nodes": nodes, "gpus_per_node": per_node}
    return [*rest, *(f"--set=cluster.{key}={number}" for key, number in said.items() if number is not None)]


def unknown_option(word: str, options: Collection[str], where: str) -> ConfigError:
    """An option that a command lacks, with the one that was meant: words of a few letters are alike by chance."""
    keys = run_keys() if "--set" in options else {}
    error = unknown_name("option", word, {*options, *keys}, where=where)
    known = {*options, *keys, *(flag for flag, ours in SPELLINGS.items() if ours in options or ours in keys)}
    near = difflib.get_close_matches(canonical(word), sorted(known), n=1, cutoff=0.75)
    error.expected = f"an option of {where} --help" + (
        ", a key of [training] (--seq-len) or a size of [parallel] (--tp); others are --set KEY=VALUE" if keys else ""
    )
    error.nearest = near[0] if near else None
    hint = "" if error.nearest is None else f", did you mean {error.nearest!r}?"
    error.message = f"unknown option {shown(word)!r}{hint}"
    return error
