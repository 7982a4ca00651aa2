"""What is frozen: a covering design over setups, schedules, ZeRO, plans and options, of small jobs.

Every shipped setup is shortened (``shortened``): two data-parallel replicas at most and few microbatches, everything
else as shipped. Not the full product is taken:

- each setup under each schedule, plain and planned; ZeRO and the kind of plan rotate from case to case, so that over
  the setups each schedule meets each ZeRO stage; ``lm-7b`` has the full product;
- each option with each class of setups (``CLASSES``); setup within the class, schedule and ZeRO rotate;
- experts, adapters and kinds of models that no setup has, as run files of their own (``MODELS``, ``EXPERTS``);
- execution plans, searches, grids, comparisons, what-ifs, validations, a trace and whole commands.

A case is data. ``freeze.py`` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from semu_models.setups import SETUPS


class What(Enum):
    """Which document is frozen."""

    RESULT = "result"
    PLAN = "plan"
    SEARCH = "search"
    TRACE = "trace"
    TEXT = "text"
    GRID = "grid"
    COMPARE = "compare"
    WHAT_IF = "what-if"
    VALIDATE = "validate"
    BASELINE = "baseline"
    COMMAND = "command"


@dataclass(frozen=True)
class Case:
    """One frozen document.

    Attributes:
        name: of the case; what it is, setup or model, and what is special about it.
        what: the document.
        run: name of a setup, or tables of a run file.
        changes: of the run file, as ``--set`` takes them.
        plan: kind of ``StagePlan`` (``PLANS``); None: a plain job.
        options: of what makes the document: ``simulate``, ``search``, ``grid``, ...; for a command, its words.
        is_quick: belongs to the quick subset.
    """

    name: str
    what: What
    run: str | Mapping[str, Mapping[str, object]] = ""
    changes: tuple[str, ...] = ()
    plan: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    is_quick: bool = False


V_SHAPE = ("parallel.vpp=2", "parallel.placement=v-shape")
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "1f1b": (),
    "gpipe": (),
    "interleaved": ("parallel.vpp=2",),
    "looped-bfs": ("parallel.vpp=2",),
    "eager-1f1b": (),
    "zb-h1": (),
    "zb-h2": (),
    "zb-auto": (),
    "zb-auto-2p": (),
    "interleaved-zb": ("parallel.vpp=2",),
    "zb-v": V_SHAPE,
    "v-half": V_SHAPE,
    "v-min": V_SHAPE,
    "dualpipe-v": V_SHAPE,
    "chimera": ("parallel.placement=bidirectional",),
    "hanayo": V_SHAPE,
    "greedy": (),
    "optimus": (),
}
"""Every schedule, and what the run file says beside its name."""

PLANNED = ("1f1b", "gpipe", "interleaved", "looped-bfs", "eager-1f1b")
"""Schedules that run under a plan."""

PLANS = ("empty", "parts", "variants", "chunks")
"""Kinds of plans: nothing said; microbatches of the first module in two parts; two memory strategies a chunk in turn,
with parts where the model has encoders; chunks of single modules."""

CLASSES: Mapping[str, tuple[str, ...]] = {
    "text-small": ("lm-7b",),
    "text-large": ("gpt3-175b",),
    "vlm-small": ("vlm-7b", "vlm-s", "qwen2-vl-7b"),
    "vlm-large": ("vlm-m", "vlm-l", "vlm-xl-8k"),
    "t2v-small": ("t2v-s",),
    "t2v-large": ("t2v-l", "t2v-xl-3k", "t2v-xl-6k"),
    "mixed": ("qwen2-audio-7b",),
}
"""Setups by what they read and how large they are."""


@dataclass(frozen=True)
class Option:
    """A training option with code of its own.

    Attributes:
        changes: of the run file. simulate: arguments of ``simulate``. halves_tp: half of the tensor-parallel ranks go
            to context parallelism. zero, schedule: what it needs; None: any.
    """

    changes: tuple[str, ...] = ()
    simulate: Mapping[str, object] = field(default_factory=dict)
    halves_tp: bool = False
    zero: int | None = None
    schedule: str | None = None


NO_RECOMPUTE = "training.recompute=none"
OPTIONS: Mapping[str, Option] = {
    "contention": Option(simulate={"contention": True}),
    "samples": Option(("training.jitter=0.05",), {"samples": 40, "seed": 3}),
    "stragglers": Option(
        ("training.straggler_share=0.1", "training.straggler_slowdown=1.5"), {"samples": 40, "seed": 4}
    ),
    "offload-optimizer": Option(("training.offload=optimizer",)),
    "offload-weights": Option(("training.offload=weights",), zero=1),
    "offload-activations": Option(("training.offload=activations", "training.offload_fraction=0.5", NO_RECOMPUTE)),
    "offload-all": Option(('training.offload=["activations","weights","optimizer"]', NO_RECOMPUTE), zero=0),
    "fp8": Option(("training.precision=fp8",)),
    "fp8-blockwise": Option(("training.precision=fp8", "training.fp8_recipe=blockwise")),
    "fp8-microbatch": Option(("training.precision=fp8", "training.fp8_weights=microbatch", NO_RECOMPUTE)),
    "fp8-primary": Option(("training.precision=fp8", "training.fp8_weights=primary"), zero=1),
    "fp16": Option(("training.precision=fp16", "training.loss_scaling=true", "training.gradient_clipping=true")),
    "fp32": Option(("training.precision=fp32",)),
    "clipping": Option(("training.gradient_clipping=true",)),
    "bf16-states": Option(
        ("training.grad_dtype=bf16", "training.master_dtype=bf16", "training.optimizer_state_dtype=bf16")
    ),
    "cp-ring": Option(halves_tp=True),
    "cp-all-gather": Option(("parallel.cp_kind=all_gather",), halves_tp=True),
    "cp-all-to-all": Option(("parallel.cp_kind=all_to_all",), halves_tp=True),
    "recompute-none": Option((NO_RECOMPUTE,)),
    "recompute-selective": Option(("training.recompute=selective",)),
    "recompute-list": Option(('training.recompute=["mlp","core_attn"]',)),
    "recompute-uniform": Option(
        ("training.recompute=full", "training.recompute_method=uniform", "training.recompute_layers=3")
    ),
    "recompute-block": Option(
        ("training.recompute=full", "training.recompute_method=block", "training.recompute_layers=2")
    ),
    "recompute-every": Option(("training.recompute=full", "training.recompute_every=2")),
    "recompute-policy": Option(("training.recompute=full", "training.recompute_policy=every_second_matmul")),
    "launch": Option(("training.launch=true",)),
    "unfused": Option(("training.attention=unfused", "training.cross_entropy=unfused", NO_RECOMPUTE)),
    "eager": Option(("training.eager_modules=true", "training.cross_entropy=fused", NO_RECOMPUTE)),
    "no-fusion": Option(("training.gradient_accumulation_fusion=false",)),
    "torch": Option(("training.software=torch", "training.workspaces=torch")),
    "torch-zero3": Option(("training.software=torch", "parallel.reshard_after_forward=false"), zero=3),
    "workspaces": Option(("training.workspaces=transformer_engine",)),
    "overhead": Option(("training.overhead_s=0.125",)),
    "latency": Option(("parallel.partition=latency",)),
    "layers": Option(("parallel.partition=layers",)),
    "separated": Option(("parallel.segments=separated", "parallel.vpp=2"), schedule="interleaved"),
    "apart": Option(("parallel.segments=apart",), schedule="1f1b"),
    "frozen": Option(('model.frozen=["encoder"]',)),
    "frozen-backbone": Option(('model.frozen=["backbone"]',)),
    "lora": Option(("model.lora.rank=16", "model.lora.targets=all-linear")),
    "no-sequence-parallel": Option(("parallel.sequence_parallel=false",)),
    "overlap-none": Option(
        (
            "overlap.grad_reduce=false",
            "overlap.param_gather=false",
            "overlap.tensor_parallel=false",
            "overlap.pipeline=false",
        )
    ),
    "overlap-all": Option(("overlap.tensor_parallel=true", "overlap.pipeline=true")),
    "post-validation": Option(("training.optimizer_post_validation=true",), zero=0, schedule="zb-h1"),
    "activation-limit": Option(("training.activation_limit=1.5p",), schedule="zb-auto"),
    "zero-group": Option(("parallel.zero_group=2", "parallel.dp=4"), zero=3),
    "micro-batch": Option(("training.micro_batch=2",)),
    "ethernet": Option(("cluster.override.nic_bytes_per_s=5e9",), {"contention": True}),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a shortened setup."""

    dp: int
    tp: int
    pp: int
    cp: int
    per_replica: int
    micro_batch: int = 1

    def changes(self) -> tuple[str, ...]:
        gpus = self.dp * self.tp * self.pp * self.cp
        return (
            f"parallel.dp={self.dp}",
            f"parallel.tp={self.tp}",
            f"parallel.pp={self.pp}",
            f"parallel.cp={self.cp}",
            f"training.global_batch={self.dp * self.per_replica * self.micro_batch}",
            f"cluster.nodes={-(-gpus // 8)}",
            f"cluster.gpus_per_node={min(gpus, 8)}",
        )


def shortened(name: str) -> Shape:
    """A setup with two replicas at most and few microbatches; those without a pipeline get one of two ranks."""
    parallel = SETUPS[name].parallel
    pp = max(2, parallel.pp)
    return Shape(2, parallel.tp, pp, 1, max(pp, 4) if pp > 4 else 2 * pp)


def settings(name: str, schedule: str, zero: int, option: Option | None = None) -> tuple[str, ...]:
    """Changes of a setup's run file, the option's last."""
    shape = shortened(name)
    option = option if option is not None else Option()
    if option.halves_tp:
        shape = replace(shape, tp=shape.tp // 2, cp=2)
    if "training.micro_batch=2" in option.changes:
        shape = replace(shape, micro_batch=2)
    if "parallel.dp=4" in option.changes:
        shape = replace(shape, dp=4)
    return (
        *shape.changes(),
        f"training.schedule={schedule}",
        *SCHEDULES[schedule],
        f"parallel.zero={zero}",
        *option.changes,
    )


# -- setups under schedules --
def _zero_for(schedule: str, turn: int) -> int:
    """ZeRO of a case in turn; two copies of the model go with 0 and 1 alone."""
    return turn % 2 if schedule == "chimera" else turn % 4


def under_schedules() -> Iterator[Case]:
    for i, name in enumerate(SETUPS):
        for k, schedule in enumerate(SCHEDULES):
            zeros = range(4) if name == "lm-7b" else (_zero_for(schedule, i + k),)
            for zero in zeros:
                yield Case(
                    f"result/{name}/{schedule}/zero{zero}",
                    What.RESULT,
                    name,
                    settings(name, schedule, zero),
                    is_quick=(name == "lm-7b" and zero == k % 4)
                    or (name == "t2v-s" and schedule in ("zb-v", "optimus")),
                )


def under_plans() -> Iterator[Case]:
    """Each setup under each schedule that runs under a plan; the others, which are refused, on two setups."""
    for i, name in enumerate(SETUPS):
        for k, schedule in enumerate(SCHEDULES):
            is_usual, is_full = schedule in PLANNED, name in ("lm-7b", "vlm-s", "t2v-s")
            if not is_usual and name not in ("lm-7b", "vlm-s"):
                continue
            for number, plan in enumerate(PLANS):
                turn = i + k + number
                zeros = (turn % 4,) if plan == "empty" else (turn // 2 % 2,)
                if is_usual and is_full:
                    zeros = (0, 1, 2, 3) if plan == "empty" or name == "lm-7b" else (0, 1)
                elif number != (i + k) % len(PLANS) and (not is_usual or number != (i + k + 2) % len(PLANS)):
                    continue
                for zero in zeros:
                    yield Case(
                        f"planned/{name}/{schedule}/zero{zero}/{plan}",
                        What.RESULT,
                        name,
                        settings(name, schedule, zero),
                        plan=plan,
                        is_quick=name == "lm-7b" and is_usual and zero == turn % 2,
                    )


def options() -> Iterator[Case]:
    """Each option on a setup of each class, plain; and on one class in turn, planned."""
    names = list(SCHEDULES)
    for number, (word, option) in enumerate(OPTIONS.items()):
        for turn, own in enumerate(CLASSES.values()):
            name = own[number % len(own)]
            schedule = option.schedule or names[(number + 5 * turn) % len(names)]
            if schedule == "optimus" and turn < 2:
                schedule = "1f1b"
            zero = option.zero if option.zero is not None else _zero_for(schedule, number + turn)
            yield Case(
                f"option/{word}/{name}/{schedule}/zero{zero}",
                What.RESULT,
                name,
                settings(name, schedule, zero, option),
                options=option.simulate,
                is_quick=name == "lm-7b" or (turn == 2 and number % 6 == 0),
            )
            if turn not in (0, 2 + 2 * (number % 3)) and (number % 4 or turn != 3 + number // 4 % 2 * 2):
                continue
            schedule = option.schedule or ("1f1b" if turn else "interleaved")
            plan = PLANS[(number + turn) % len(PLANS)]
            if plan != "empty" and option.zero is None:
                zero %= 2
            yield Case(
                f"option-planned/{word}/{name}/{schedule}/zero{zero}/{plan}",
                What.RESULT,
                name,
                settings(name, schedule, zero, option),
                plan=plan,
                options=option.simulate,
                is_quick=turn == 0 and number % 4 == 0,
            )


_TWO = ("parallel.vpp=2",)
LAYOUTS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "layers": ("lm-7b", "1f1b", ("parallel.layout.layers=[7,9,9,7]",)),
    "layers-zb": ("lm-7b", "zb-h1", ("parallel.layout.layers=[6,9,9,8]",)),
    "layers-vpp": ("lm-7b", "interleaved", ("parallel.layout.layers=[3,4,5,4,4,4,5,3]", *_TWO)),
    "layers-gpt": ("gpt3-175b", "1f1b", ("parallel.layout.layers=[7,8,8,8,8,8,8,8,8,8,8,9]",)),
    "stages": ("lm-7b", "1f1b", ('parallel.layout.stages="Et*7|t*9|t*9|t*7L"',)),
    "stages-vpp": ("lm-7b", "interleaved", ('parallel.layout.stages="E|t*5|t*5|t*5|t*5|t*6|t*6|L"', *_TWO)),
    "first-last": ("lm-7b", "1f1b", ("parallel.layout.first=6", "parallel.layout.last=6")),
    "first-last-gpt": ("gpt3-175b", "zb-auto", ("parallel.layout.first=3", "parallel.layout.last=3")),
    "first-last-no": ("lm-7b", "1f1b", ("parallel.layout.first=1", "parallel.layout.last=2")),
    "modules": ("vlm-7b", "1f1b", ("parallel.layout.modules.vit=[48]", "parallel.layout.modules.llm=[8,8,8]")),
    "separated": ("vlm-s", "interleaved", ("parallel.segments=separated", "parallel.vpp=3")),
    "shares": ("vlm-m", "1f1b", ("parallel.segments=apart", "parallel.shares.vit=1", "parallel.shares.llm=3")),
    "vit-tp1": ("vlm-s", "1f1b", ("parallel.modules.vit.tp=1",)),
    "vit-tp1-zero3": ("vlm-7b", "1f1b", ("parallel.modules.vit.tp=1", "parallel.zero=3")),
    "vit-tp2": ("vlm-l", "1f1b", ("parallel.modules.vit.tp=2",)),
    "vit-dp": ("vlm-s", "interleaved", ("parallel.modules.vit.dp=4", "parallel.modules.vit.tp=2", *_TWO)),
    "vit-cp": ("vlm-s", "1f1b", ("parallel.modules.vit.cp=1", "parallel.tp=2", "parallel.cp=2")),
    "audio-tp1": ("qwen2-audio-7b", "1f1b", ("parallel.modules.audio.tp=1",)),
    "dit-sequence": ("t2v-s", "1f1b", ("parallel.modules.llm.tp=1", "parallel.modules.dit.sequence_parallel=false")),
    "modules-unknown": ("lm-7b", "1f1b", ("parallel.modules.vit.tp=1",)),
}
"""Uneven layouts and modules with sizes of their own: setup, schedule, changes."""


def layouts() -> Iterator[Case]:
    for word, (name, schedule, changes) in LAYOUTS.items():
        own = (*settings(name, schedule, 1), *changes)
        yield Case(f"layout/{word}/{name}/{schedule}", What.RESULT, name, own, is_quick=name == "lm-7b")
        if schedule in PLANNED:
            yield Case(f"layout-planned/{word}/{name}/{schedule}", What.RESULT, name, own, plan="variants")


# -- models that no setup has --
def _tables(
    model: Mapping[str, object],
    parallel: Mapping[str, object],
    *,
    device: str = "h100",
    batch: str = "text",
    **training: object,
) -> Mapping[str, Mapping[str, object]]:
    gpus = 1
    for axis in ("dp", "tp", "pp", "cp"):
        size = parallel.get(axis, 1)
        assert isinstance(size, int)
        gpus *= size
    usual: dict[str, object] = {"global_batch": 8, "recompute": "selective"}
    if batch == "text":
        usual["seq_len"] = 2048
    return {
        "model": model,
        "cluster": {"device": device, "nodes": -(-gpus // 8), "gpus_per_node": min(gpus, 8)},
        "parallel": parallel,
        "training": usual | training,
        "batch": {"kind": batch},
    }


MODELS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "llama3-8b": _tables({"name": "llama3-8b"}, {"tp": 2, "pp": 2, "cp": 2}),
    "gemma2-9b": _tables({"name": "gemma2-9b"}, {"dp": 2, "tp": 2, "pp": 2}),
    "qwen3-8b-fsdp": _tables({"name": "qwen3-8b"}, {"dp": 8, "zero": 3}, software="torch"),
    "mixtral-8x7b": _tables({"name": "mixtral-8x7b"}, {"dp": 2, "tp": 2, "pp": 2, "ep": 4, "etp": 1}),
    "qwen3-30b-a3b": _tables({"name": "qwen3-30b-a3b"}, {"dp": 8, "ep": 8, "pp": 2, "zero": 1}, device="h800"),
    "deepseek-v2-lite": _tables({"name": "deepseek-v2-lite"}, {"dp": 4, "ep": 4, "pp": 2}),
    "kimi-k2": _tables({"name": "kimi-k2"}, {"dp": 8, "ep": 8, "pp": 8}, precision="fp8"),
    "deepseek-v3-mtp": _tables({"name": "deepseek-v3-mtp"}, {"dp": 8, "ep": 8, "pp": 8}, precision="fp8"),
    "gpt-oss-20b": _tables({"name": "gpt-oss-20b"}, {"dp": 4, "ep": 2, "tp": 2}),
    "bert-large": _tables({"name": "bert-large"}, {"dp": 4, "pp": 2}, seq_len=512),
    "clip-vit-l-14": _tables({"name": "clip-vit-l-14"}, {"dp": 4}, batch="pairs"),
    "flux-12b": _tables({"name": "flux-12b"}, {"dp": 2, "tp": 2, "pp": 2}, batch="t2v"),
    "hunyuan-video-13b": _tables({"name": "hunyuan-video-13b"}, {"tp": 4, "pp": 2}, batch="t2v"),
    "llava-1.5-7b": _tables({"name": "llava-1.5-7b", "frozen": ["encoder"]}, {"dp": 2, "pp": 2}, batch="vlm"),
    "qwen2.5-vl-7b": _tables({"name": "qwen2.5-vl-7b"}, {"dp": 2, "tp": 2, "pp": 2}, batch="vlm"),
    "qwen2.5-omni-7b": _tables({"name": "qwen2.5-omni-7b"}, {"dp": 2, "tp": 2, "pp": 2}, batch="mixed"),
    "gpt2-a40": _tables({"name": "gpt2"}, {"dp": 2, "pp": 2}, device="a40", precision="tf32", seq_len=1024),
    "llama2-7b-b200": _tables({"name": "llama2-7b"}, {"dp": 4, "tp": 2}, device="b200", launch=True),
    "llama3-405b": _tables({"name": "llama3-405b"}, {"dp": 2, "tp": 8, "pp": 16}, global_batch=32),
}
"""Run files of models that no setup trains."""

_EXPERTS: Mapping[str, object] = {
    "transformer": {
        "layers": 8,
        "hidden": 2048,
        "ffn": 5632,
        "heads": 16,
        "kv_heads": 8,
        "vocab": 32000,
        "gated_mlp": True,
        "experts": 16,
        "top_k": 2,
        "moe_ffn": 1408,
        "shared_ffn": 1408,
        "first_k_dense": 1,
    }
}
_SPREAD: Mapping[str, object] = {"dp": 4, "tp": 2, "pp": 2, "ep": 4}
EXPERTS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    **{f"zero{zero}": _tables(_EXPERTS, {**_SPREAD, "zero": zero}) for zero in range(4)},
    "etp": _tables(_EXPERTS, {**_SPREAD, "etp": 1, "ep": 8}),
    "cp": _tables(_EXPERTS, {"dp": 2, "cp": 2, "tp": 2, "pp": 2, "ep": 4}),
    "imbalance": _tables(_EXPERTS, _SPREAD, moe_imbalance=1.5),
    "loads": _tables(_EXPERTS, _SPREAD, moe_imbalance=[float(1 + n % 3) for n in range(16)]),
    "capacity": _tables(_EXPERTS, _SPREAD, moe_capacity_factor=1.25),
    "padded": _tables(_EXPERTS, _SPREAD, moe_capacity_factor=1.25, moe_pad_to_capacity=True),
    "no-grouped-gemm": _tables(_EXPERTS, _SPREAD, moe_grouped_gemm=False),
    "fp8": _tables(_EXPERTS, _SPREAD, precision="fp8"),
    "full": _tables(_EXPERTS, _SPREAD, recompute="full"),
    "moe": _tables(_EXPERTS, _SPREAD, recompute=["moe"]),
    "zb-h1": _tables(_EXPERTS, _SPREAD, schedule="zb-h1"),
    "zb-v": _tables(_EXPERTS, {**_SPREAD, "vpp": 2, "placement": "v-shape"}, schedule="zb-v"),
    "interleaved": _tables(_EXPERTS, {**_SPREAD, "vpp": 2}, schedule="interleaved"),
    "offload": _tables(_EXPERTS, _SPREAD, offload="optimizer"),
    "torch-zero3": _tables(_EXPERTS, {**_SPREAD, "zero": 3}, software="torch"),
    "zero-group": _tables(_EXPERTS, {**_SPREAD, "zero": 3, "zero_group": 2, "ep": 2}),
}
"""A mixture of experts under what concerns experts."""


def models() -> Iterator[Case]:
    for name, tables in MODELS.items():
        quick = name in ("qwen3-8b-fsdp", "mixtral-8x7b", "bert-large")
        yield Case(f"model/{name}", What.RESULT, tables, is_quick=quick)
    for name, tables in EXPERTS.items():
        yield Case(f"experts/{name}", What.RESULT, tables, is_quick=True)
        if name in ("zero1", "imbalance", "interleaved", "torch-zero3"):
            yield Case(f"experts-planned/{name}", What.RESULT, tables, plan="variants")
    contended = {"contention": True}
    yield Case("experts/contention", What.RESULT, EXPERTS["zero1"], options=contended, is_quick=True)
    yield Case("experts/contention-zero3", What.RESULT, EXPERTS["zero3"], options=contended)


# -- other documents --
def plans() -> Iterator[Case]:
    """Execution plans of each setup, under schedules in turn; under each schedule of lm-7b."""
    names = list(SCHEDULES)
    for i, name in enumerate(SETUPS):
        for turn in range(len(names) if name == "lm-7b" else 3):
            schedule = names[(7 * i + turn * (1 if name == "lm-7b" else 5)) % len(names)]
            zero = _zero_for(schedule, i + turn)
            changes = settings(name, schedule, zero)
            quick = name == "lm-7b" and turn % 2 == 0
            yield Case(f"plan/{name}/{schedule}/zero{zero}", What.PLAN, name, changes, is_quick=quick)
        for plan in PLANS[1:] if name in ("lm-7b", "vlm-s", "t2v-s") else (PLANS[1 + i % 3],):
            changes = settings(name, "1f1b", i % 4)
            yield Case(f"plan-planned/{name}/1f1b/zero{i % 4}/{plan}", What.PLAN, name, changes, plan=plan)


def searches() -> Iterator[Case]:
    """Searched schedules, with a number of rollouts; never with a time."""
    for i, name in enumerate(SETUPS):
        zero, options = (i + 1) % 2, {"rollouts": 30, "seed": i, "workers": 1}
        changes = settings(name, "1f1b", zero)
        yield Case(f"search/{name}/zero{zero}", What.SEARCH, name, changes, options=options, is_quick=name == "vlm-s")
    base = settings("vlm-s", "1f1b", 1)
    yield Case(
        "search/lm-7b/zero3", What.SEARCH, "lm-7b", settings("lm-7b", "1f1b", 3), options={"rollouts": 5, "workers": 1}
    )
    for word, options in {
        "two-workers": {"rollouts": 40, "seed": 1, "workers": 2},
        "heuristic": {"rollouts": 0, "workers": 1},
        "mcts": {"rollouts": 40, "seed": 2, "workers": 1, "strategy": "mcts"},
        "max": {"rollouts": 20, "seed": 2, "workers": 1, "objective": "max"},
        "whole": {"rollouts": 20, "seed": 2, "workers": 1, "sub_batch": {"vit": 0}},
        "two-segments": {"rollouts": 20, "seed": 2, "workers": 1, "segments": {"llm": 2}},
        "no-offload": {"rollouts": 20, "seed": 2, "workers": 1, "strategies": ["none", "full"]},
        "tight": {"rollouts": 20, "seed": 2, "workers": 1, "memory_limit_bytes": 30 << 30},
    }.items():
        yield Case(f"search/vlm-s/{word}", What.SEARCH, "vlm-s", base, options=options)


def tables() -> Iterator[Case]:
    """Comparisons, what-ifs, grids, baselines, validations."""
    for name in ("lm-7b", "vlm-s", "t2v-s", "gpt3-175b"):
        base = settings(name, "1f1b", 1)
        is_quick = name == "lm-7b"
        yield Case(f"compare/{name}", What.COMPARE, name, base, options={"names": "all"}, is_quick=is_quick)
        yield Case(f"what-if/{name}", What.WHAT_IF, name, base, is_quick=is_quick)
        for baseline in ("megatron", "megatron-1f1b", "nnscaler", "optimus", "fsdp", "greedy"):
            yield Case(f"baseline/{name}/{baseline}", What.BASELINE, name, base, options={"name": baseline})
        yield Case(f"trace/{name}", What.TRACE, name, base, is_quick=is_quick)
        yield Case(f"text/{name}", What.TEXT, name, base, is_quick=is_quick)
    yield Case("trace/vlm-s/zb-h1", What.TRACE, "vlm-s", settings("vlm-s", "zb-h1", 3))
    contended = {"contention": True}
    yield Case("trace/lm-7b/contention", What.TRACE, "lm-7b", settings("lm-7b", "1f1b", 3), options=contended)
    yield Case("trace/vlm-s/planned", What.TRACE, "vlm-s", settings("vlm-s", "1f1b", 1), plan="variants")
    small = {"vary": {"dp": None, "tp": [1, 2, 4], "pp": [1, 2, 4], "recompute": None}}
    base = settings("lm-7b", "1f1b", 1)
    yield Case("grid/lm-7b/small", What.GRID, "lm-7b", base, options=small, is_quick=True)
    for word, options in {
        "usual": {},
        "exhaustive": {**small, "exhaustive": True},
        "schedules": {
            "vary": {"pp": [2, 4], "dp": None, "vpp": [1, 2], "schedule": None, "placement": None},
            "framework": "any",
        },
        "zero": {"vary": {"dp": None, "pp": [1, 2, 4], "cp": [1, 2], "zero": None, "micro_batch": [1, 2]}},
        "tokens": {**small, "rank_by": "tokens", "top": 3},
        "cost": {**small, "rank_by": "cost", "price": 2.0},
        "headroom": {**small, "rank_by": "headroom", "top": 4},
    }.items():
        yield Case(f"grid/lm-7b/{word}", What.GRID, "lm-7b", base, options=options)
    for name in ("vlm-s", "t2v-s"):
        yield Case(f"grid/{name}/small", What.GRID, name, settings(name, "1f1b", 1), options={**small, "top": 3})
    yield Case("grid/experts", What.GRID, EXPERTS["zero1"], options={"top": 3})
    yield Case("validate/published", What.VALIDATE)
    yield Case("validate/runs", What.VALIDATE, options={"runs": "runs/runs.json", "every": 12})
    yield Case("validate/runs2", What.VALIDATE, options={"runs": "runs/runs2.json", "every": 12})
    yield Case("validate/runs/pass-times", What.VALIDATE, options={"runs": "runs/runs.json", "pass_times": True})


_LM = ("lm-7b", "--set", "training.global_batch=8", "--json")
_VLM = ("vlm-s", "--set", "training.global_batch=8", "--json")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "simulate": ("simulate", *_LM),
    "simulate-fits-not": ("simulate", *_LM, "--cluster", "a40:1x8"),
    "simulate-samples": ("simulate", *_VLM, "--samples", "20", "--seed", "5", "--set", "training.jitter=0.1"),
    "dump-config": ("simulate", "gpt3-175b", "--dump-config"),
    "dump-baseline": ("simulate", "vlm-m", "--baseline", "megatron", "--dump-config"),
    "schedules": ("schedules", *_LM),
    "schedules-plain": ("schedules", "--ranks", "8", "--microbatches", "16", "--compare", "all", "--json"),
    "what-if": ("what-if", *_LM),
    "plan": ("plan", *_VLM),
    "search": ("search", *_LM, "--rollouts", "10", "--workers", "1"),
    **{f"list-{what}": ("list", what, "--json") for what in ("setups", "schedules", "devices")},
    "unknown-key": ("simulate", "lm-7b", "--set", "training.micro_batches=2", "--json"),
    "unknown-setup": ("simulate", "vlm-q", "--json"),
    "wrong-heads": ("simulate", "lm-7b", "--parallel", "tp3-pp4", "--cluster", "h800:1x12", "--json"),
}
"""Whole commands: what they print, and their exit code."""


def commands() -> Iterator[Case]:
    quick = ("simulate", "dump-config", "schedules-plain", "unknown-key")
    for name, words in COMMANDS.items():
        yield Case(f"command/{name}", What.COMMAND, options={"words": words}, is_quick=name in quick)


def all_cases() -> dict[str, Case]:
    """Every case by name, in the order of names."""
    found: dict[str, Case] = {}
    for make in (under_schedules, under_plans, options, layouts, models, plans, searches, tables, commands):
        for case in make():
            if case.name in found:
                raise ValueError(f"two cases are called {case.name}")
            found[case.name] = case
    return dict(sorted(found.items()))
