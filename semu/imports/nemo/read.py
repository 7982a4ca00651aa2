"""``read_nemo``: a YAML file of NeMo or Megatron-Bridge becomes arguments of Megatron-LM, and so a run file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from importlib.resources import files

from semu.imports.arguments import Argument, Given
from semu.imports.documents import Document, read_document
from semu.imports.megatron.flags import FLAGS, TOKENIZERS
from semu.imports.megatron.read import tables_of, with_vocabulary
from semu.imports.reading import ImportedTables, finish
from semu.imports.settings import Settings

_DATA = tomllib.loads(files("semu.imports.nemo").joinpath("keys.toml").read_text("utf-8"))
_RENAME: Mapping[str, str] = _DATA["rename"]
_INVERSE: Mapping[str, str] = _DATA["inverse"]
_IGNORED: Mapping[str, list[str]] = _DATA["ignored"]
_SECTIONS: list[str] = _DATA["sections"]
_TRAINER = re.compile(r"^\s+(num_nodes|devices)\s*:", re.MULTILINE)
_BRIDGE = re.compile(r"^(model|train|ddp|mixed_precision|comm_overlap)\s*:", re.MULTILINE)
_PARALLEL = re.compile(r"^\s+(tensor|pipeline)_model_parallel_size\s*:", re.MULTILINE)
_BF16 = ("bf16", "True")
_HYBRID, _GATHERED = ("fp8", "hybrid"), ("fp8_param", "True")
_MIXED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bf16": (_BF16,),
    "fp16": (("fp16", "True"),),
    "32": (),
    "bf16_mixed": (_BF16,),
    "fp16_mixed": (("fp16", "True"),),
    "bf16_with_fp8_delayed_scaling_mixed": (
        ("bf16", "True"),
        ("fp8", "hybrid"),
        ("fp8_recipe", "delayed"),
        ("fp8_param", "True"),
    ),
    "bf16_with_fp8_current_scaling_mixed": (
        ("bf16", "True"),
        ("fp8", "hybrid"),
        ("fp8_recipe", "tensorwise"),
        ("fp8_param", "True"),
    ),
    "bf16_with_fp8_subchannel_scaling_mixed": (_BF16, _HYBRID, ("fp8_recipe", "blockwise")),
    "bf16_with_mxfp8_mixed": (_BF16, ("fp8", "e4m3"), ("fp8_recipe", "mxfp8"), _GATHERED),
}
"""A precision's name -> arguments (Megatron-Bridge, ``mixed_precision.py``)."""
_ACTIVATIONS: Mapping[str, str | None] = {
    "silu": "swiglu", "swiglu": "swiglu", "fast-swiglu": "swiglu", "squared_relu": "squared_relu",
    "squared-relu": "squared_relu", "quick_gelu": "quick_geglu", "gelu": None, "openai_gelu": "openai_gelu",
}  # fmt: skip
_TRAINERS = ("trainer.num_nodes", "trainer.devices")
_NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}


def is_nemo(path: str, text: str) -> bool:
    """Whether a file is a YAML configuration of NeMo or of Megatron-Bridge."""
    if not path.endswith((".yaml", ".yml")):
        return False
    return _PARALLEL.search(text) is not None and (
        _TRAINER.search(text) is not None or len(set(_BRIDGE.findall(text))) >= 2
    )


def read_nemo(
    text: str, source: str, cluster: str | None = None, *, vocab: str | None = None, allow_unmodelled: bool = False
) -> ImportedTables:
    """Read a configuration.

    Args:
        text: contents of the file. source: its name, for messages.
        cluster: ``DEVICE:NODESxGPUS``; None: as ``trainer`` says, else the fewest whole nodes.
        vocab: entries of the vocabulary as the caller has them; None: as the file says.
        allow_unmodelled: leave out what makes another model or arithmetic, and list it, instead of refusing it.
    Raises:
        ConfigError: text that is no YAML; else as ``semu.imports.megatron.read_arguments``.
    """
    document = read_document(text, source)
    settings = Settings(with_vocabulary(_given(document), vocab))
    settings.ignored += list(_beside(document))
    tables = tables_of(settings, cluster)
    return finish(settings, tables, allow_unmodelled=allow_unmodelled, cluster=cluster)


def _given(document: Document) -> Given:
    found = [argument for path, (words, line) in document.leaves.items() for argument in _arguments(path, words, line)]
    if document.leaves.get("model.gated_linear_unit", ((),))[0] == ("true",) and not any(
        argument.flag is not None and argument.flag.dest in ("swiglu", "quick_geglu") for argument in found
    ):
        words, line = document.leaves["model.gated_linear_unit"]
        found.append(Argument(None, "model.gated_linear_unit", words, line))
    names = {argument.flag.dest for argument in found if argument.flag is not None}
    found += [
        Argument(FLAGS.printed(dest), dest, (value,), 0, is_printed=True)
        for dest, value in _implied(document, names).items()
        if dest not in names
    ]
    nodes, gpus = (_count(document, key) for key in ("trainer.num_nodes", "trainer.devices"))
    line = next(
        (document.leaves[key][1] for key in ("trainer.num_nodes", "trainer.devices") if key in document.leaves), 0
    )
    kind = "configuration of NeMo" if "trainer.precision" in document.leaves else "configuration of Megatron-Bridge"
    return Given(document.source, kind, FLAGS, tuple(found), nodes, gpus, line)


def _arguments(path: str, words: tuple[str, ...], line: int) -> Iterator[Argument]:
    """The arguments of Megatron-LM that a key stands for."""
    if path in _SPECIAL:
        for name, value in _SPECIAL[path](" ".join(words)):
            yield Argument(FLAGS.printed(name), path, (value,), line, is_printed=True)
        return
    if path in _INVERSE:
        value = "False" if words == ("true",) else "True"
        yield Argument(FLAGS.printed(_INVERSE[path]), path, (value,), line, is_printed=True)
        return
    dest = _named(path)
    flag = None if dest is None else FLAGS.printed(dest)
    if flag is not None:
        yield Argument(flag, path, _words(words), line, is_printed=True)
    elif not _is_beside(path):
        yield Argument(None, path, _words(words), line, is_printed=True)


def _named(path: str) -> str | None:
    """The name in Megatron-LM's log that a key stands for; None: none that it would have."""
    section, _, last = path.rpartition(".")
    return _RENAME.get(path, last if section in _SECTIONS else None)


def _words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Values as a log of Megatron-LM prints them."""
    plain = {"true": "True", "false": "False", "null": "None"}
    if len(words) > 1 and all(word.lstrip("-").isdigit() for word in words):
        return ("[" + ", ".join(words) + "]",)
    return tuple(plain.get(word, word) for word in words)


def _is_beside(path: str) -> bool:
    return any(fnmatchcase(path, pattern) for patterns in _IGNORED.values() for pattern in patterns)


def _beside(document: Document) -> Iterator[tuple[Argument, str]]:
    """Keys without effect, with why."""
    for path, (words, line) in document.leaves.items():
        if not any(True for _ in _arguments(path, words, line)):
            why = next((key for key, rows in _IGNORED.items() if any(fnmatchcase(path, row) for row in rows)), "")
            yield Argument(None, path, words, line), f"{why}: changes neither time nor memory of an iteration"


def _precision(value: str) -> Iterator[tuple[str, str]]:
    name = value.replace("-", "_")
    yield from _MIXED.get(name, (("fp8_recipe", f"unknown precision {value}"),))


def _activation(value: str) -> Iterator[tuple[str, str]]:
    name = value.rpartition(".")[2]
    dest = _ACTIVATIONS.get(name, name)
    if dest is not None:
        yield dest, "True"


def _normalization(value: str) -> Iterator[tuple[str, str]]:
    yield "normalization", _NORMS.get(value.lower(), value)


def _gradients(value: str) -> Iterator[tuple[str, str]]:
    if value == "false":
        yield "grad_reduce_in_bf16", "True"


def _dtype(name: str) -> Callable[[str], Iterator[tuple[str, str]]]:
    def _read(value: str) -> Iterator[tuple[str, str]]:
        short = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
        last = value.rpartition(".")[2]
        yield name, short.get(last, last)

    return _read


def _groups(value: str) -> Iterator[tuple[str, str]]:
    if value not in ("None", "null"):
        yield "group_query_attention", "True"
        yield "num_query_groups", value


def _fp8(value: str) -> Iterator[tuple[str, str]]:
    if value not in ("None", "null", "false", "False"):
        yield "fp8", {"true": "hybrid", "True": "hybrid"}.get(value, value)


def _tokenizer(value: str) -> Iterator[tuple[str, str]]:
    """A name of Megatron-LM's, or of HuggingFace's hub."""
    if value in TOKENIZERS:
        yield "tokenizer_type", value
    else:
        yield "tokenizer_type", "HuggingFaceTokenizer"
        yield "tokenizer_model", value


def _nothing(value: str) -> Iterator[tuple[str, str]]:
    yield from ()


def _optimizer(value: str) -> Iterator[tuple[str, str]]:
    is_sharded = value in ("distributed_fused_adam", "mcore_distributed_optim")
    if is_sharded:
        yield "use_distributed_optimizer", "True"


_SPECIAL: Mapping[str, Callable[[str], Iterator[tuple[str, str]]]] = {
    "trainer.precision": _precision,
    "mixed_precision": _precision,
    "model.activation_func": _activation,
    "model.activation_func._target_": _activation,
    "model.activation_func._name_": _activation,
    "model.activation": _activation,
    "model.normalization": _normalization,
    "mixed_precision.grad_reduce_in_fp32": _gradients,
    "optimizer.main_grads_dtype": _dtype("main_grads_dtype"),
    "optimizer.main_params_dtype": _dtype("main_params_dtype"),
    "optimizer.exp_avg_dtype": _dtype("exp_avg_dtype"),
    "optimizer.exp_avg_sq_dtype": _dtype("exp_avg_sq_dtype"),
    "model.num_query_groups": _groups,
    "model.fp8": _fp8,
    "mixed_precision.fp8": _fp8,
    "model.optim.name": _optimizer,
    "model.tokenizer.type": _tokenizer,
    "model.gated_linear_unit": _nothing,
    "trainer.num_nodes": _nothing,
    "trainer.devices": _nothing,
}
"""Keys whose values have other words than Megatron-LM's, or that stand for several arguments."""


def _implied(document: Document, names: set[str]) -> dict[str, str]:
    """Arguments that these programs set without saying so."""
    found = {"transformer_impl": "transformer_engine", "cross_entropy_loss_fusion": "True"}
    if "position_embedding_type" not in names and "trainer.precision" in document.leaves:
        found["position_embedding_type"] = "learned_absolute"
    if "max_position_embeddings" not in names and "seq_length" in names:
        length = next(
            words[0]
            for path, (words, _) in document.leaves.items()
            if _RENAME.get(path, path.rpartition(".")[2]) == "seq_length"
        )
        found["max_position_embeddings"] = length
    return found


def _count(document: Document, key: str) -> int | None:
    words = document.leaves.get(key, ((),))[0]
    return int(words[0]) if len(words) == 1 and words[0].isdigit() and int(words[0]) > 0 else None
