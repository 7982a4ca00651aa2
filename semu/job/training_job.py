"""``TrainingJob`` = model + cluster + parallelism + training options + batch: data only, validated at the door."""

from __future__ import annotations

from functools import cached_property

from semu.errors import ConfigError, unknown_name
from semu.hardware.attention_kernels import AttentionFactors, AttentionKernel, usual_kernel
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.cluster import Cluster
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType
from semu.hardware.number import Number
from semu.hardware.software import Software, has_aggregated_trees
from semu.job.experts import check_experts, exposed_exchanges, mixtures
from semu.job.kinds import Fp8Weights, GatheredInputs, Optimizer, ParameterSync, Precision, RecomputeMethod
from semu.job.microbatches import check_microbatches
from semu.job.modules import check_modules, named_modules
from semu.job.training import Training
from semu.nn.model import Model
from semu.nn.module import Module
from semu.nn.trace.recompute_plan import KIND_ALIASES, RECOMPUTE_KINDS, RULE_KINDS, RecomputePlan, is_pattern
from semu.parallel.axes import MESH
from semu.parallel.config import Parallel
from semu.parallel.data import DDP_BUCKET_BYTES
from semu.parallel.fsdp import SECOND_SINCE, Fsdp
from semu.parallel.own_gpus import on_own_gpus
from semu.parallel.pipeline import nearest_multiple
from semu.parallel.stage_layers import stage_boundaries
from semu.parallel.towers import check_modules_apart, check_towers
from semu.parallel.vocabulary import check_vocabulary
from semu.records import dataclass
from semu.schedule.registry import ALL_SCHEDULES
from semu.workload.batch import AbstractBatch, text_batch

SCATTER_GATHER_UNTIL = "2023-07"
"""Month from which Megatron-LM no longer splits transfers over tensor-parallel ranks."""
ASYNC_REDUCTION_SINCE = "2022-01"
"""Megatron-LM with ``--no-async-tensor-model-parallel-allreduce``, which turns off what it does since."""
GRAPHS_SINCE = "2026-08"
"""Month since when Megatron-LM's router and dispatcher are taken to run in CUDA graphs: a published run of that month
takes 5.9 ms a layer and microbatch where launches would take 7. A belief, with no release note at hand."""


@dataclass(frozen=True)
class TrainingJob:
    """Everything that decides how long an iteration takes.

    Args:
        model: a ``semu.nn.Model``, or any ``semu.nn.Module`` (wrapped as a text model of one modality module).
        cluster: devices and links, or ``"h100:2x8"``; its GPUs must equal dp x cp x tp x pp.
        parallel: sizes of the parallel dimensions, or ``"tp2-pp4"``.
        training: batch sizes, precision, recompute, schedule, overlap.
        batch: where microbatches come from; None: text sequences of ``training.seq_len`` tokens.
    Raises:
        ConfigError: sizes that do not fit together, with the nearest legal value.
    """

    model: Model
    cluster: Cluster
    parallel: Parallel
    training: Training
    batch: AbstractBatch

    def __init__(
        self,
        model: Model | Module,
        cluster: Cluster | str,
        parallel: Parallel | str | None = None,
        training: Training | None = None,
        batch: AbstractBatch | None = None,
    ) -> None:
        wrapped = model if isinstance(model, Model) else Model.from_module(model)
        object.__setattr__(self, "model", wrapped)
        if isinstance(cluster, str):
            cluster = Cluster.parse(cluster)
        object.__setattr__(self, "cluster", cluster)
        chosen = Parallel.parse(parallel) if isinstance(parallel, str) else parallel or Parallel()
        named = named_modules(wrapped, chosen)
        names = [module.name for module in wrapped.modules]
        object.__setattr__(self, "parallel", on_own_gpus(named, names, wrapped.encoders, cluster.num_gpus))
        object.__setattr__(self, "training", training if training is not None else Training())
        object.__setattr__(self, "batch", batch if batch is not None else text_batch())
        self._check_cluster()
        check_microbatches(self.training, self.parallel.replicas)
        self._check_recompute()
        self._check_virtual_stages()
        check_vocabulary(self.model, self.parallel)
        check_towers(self.model, self.parallel)
        self._check_layout()
        self._check_fp8_weights()
        self._check_muon()
        self._check_frozen_weights()
        check_modules(self.model, self.parallel)
        check_experts(self.model, self.parallel, self.training)

    @cached_property
    def has_bound_mixture(self) -> bool:
        """Whether hosts launch a mixture of experts kernel by kernel (``semu.nn.trace.mixture_launches``): under a
        Megatron-LM from before ``GRAPHS_SINCE``, but where experts are padded to a capacity, whose shapes are fixed."""
        training = self.training
        is_early = training.software_date is not None and training.software_date < GRAPHS_SINCE
        is_megatron = training.software is Software.MEGATRON
        return is_megatron and is_early and not training.moe_pad_to_capacity and bool(mixtures(self.model))

    @property
    def launches(self) -> bool:
        """Whether kernels wait for their hosts; where the run does not say, where hosts are known to hold them up."""
        training = self.training
        return training.launches or (training.launch is None and self.has_bound_mixture)

    @property
    def launch(self) -> tuple[str, Number]:
        """What a launch takes [s], with its dotted key in the profile."""
        training = self.training
        return self.profile.host.launch(
            is_eager=training.is_eager or self.has_bound_mixture, blocks=training.launch_blocking
        )

    def _check_cluster(self) -> None:
        need, have = self.parallel.num_gpus, self.cluster.num_gpus
        if need != have:
            sizes = {name: size for name, size in self.parallel.sizes.items() if name in MESH}
            rest = need // self.parallel.dp
            nearest = f"dp = {have // rest}" if have % rest == 0 else None
            raise ConfigError(
                f"{' x '.join(sizes)} = {' x '.join(map(str, sizes.values()))} = {need} ranks on {have} GPUs",
                where="parallel",
                expected=f"a product of {have} (cluster {self.cluster.label()})",
                got=need,
                nearest=nearest,
            )

    def _check_recompute(self) -> None:
        """Every name of the list must stand for something in the model."""
        names = self.training.recompute_modules or ()
        if all(name in RULE_KINDS for name in names):
            return
        found = [(path, item) for m in self.model.modules for path, item in m.body.named_modules(m.name)]
        known = {item.recompute_kind for _, item in found} - {""}
        for name in names:
            if is_pattern(name):
                if not any(RecomputePlan.of((name,)).matches(path) for path, _ in found):
                    raise unknown_name("module path", name, [path for path, _ in found], where="training.recompute")
            elif KIND_ALIASES.get(name, name) not in known | set(RULE_KINDS):
                legal = sorted(known | set(RULE_KINDS))
                if name in RECOMPUTE_KINDS or name in KIND_ALIASES:
                    raise ConfigError(
                        f"the model has no module of kind {name!r}",
                        where="training.recompute",
                        expected=", ".join(legal),
                        got=name,
                    )
                raise unknown_name("module kind", name, legal, where="training.recompute")

    def _check_layout(self) -> None:
        """The layers of a layout are those of the model, and modules that lie apart have room."""
        layout = self.parallel.stage_layout
        if layout is not None:
            stage_boundaries(self.model, layout, self.parallel.pp, self.parallel.vpp)
        parallel = self.parallel
        if parallel.segments != "mixed":
            check_modules_apart(self.model, parallel)

    def _check_fp8_weights(self) -> None:
        chosen = self.training.fp8_weights
        is_fp8 = self.training.precision is Precision.FP8
        has_bf16_layers = is_fp8 and (self.training.bf16_first_layers or self.training.bf16_last_layers)
        is_grouped = self.training.recompute_method is RecomputeMethod.UNIFORM and self.training.recompute_layers != 1
        if has_bf16_layers and is_grouped:
            raise ConfigError(
                "layers in bf16 beside groups of layers that are recomputed together are not modelled by this version",
                where="training.recompute_method",
                expected="block, or none of bf16_first_layers and bf16_last_layers",
                got="uniform",
                nearest="block",
            )
        if chosen is Fp8Weights.PRIMARY and self.training.precision is not Precision.FP8:
            raise ConfigError(
                "primary fp8 weights without fp8",
                where="training.fp8_weights",
                expected='nothing, or training.precision = "fp8"',
                got=f"primary with {self.training.precision.value}",
                nearest='training.precision = "fp8"',
            )
        if chosen is Fp8Weights.PRIMARY and self.parallel.zero == 2:
            raise ConfigError(
                "primary fp8 weights with ZeRO-2 are not modelled by this version",
                where="training.fp8_weights",
                expected="iteration or microbatch, or parallel.zero of 0 or 1",
                got="primary",
                nearest="iteration",
            )
        if self.parallel.zero >= 3 and chosen is Fp8Weights.ITERATION:
            raise ConfigError(
                "fp8 copies of the weights are kept, and ZeRO-3 keeps no whole weights",
                where="training.fp8_weights",
                expected="microbatch or primary, or parallel.zero of 0 to 2",
                got=chosen.value,
                nearest="microbatch",
            )
        if self.gathers_fp8_weights and (self.shards_are_masters or not self.moves_fp8_weights):
            raise ConfigError(
                "fp8 shards under ZeRO-3 of PyTorch's FSDP or in MXFP8 are not modelled by this version",
                where="training.fp8_weights",
                expected="microbatch, or Megatron-LM's FSDP and another recipe",
                got="primary",
                nearest="microbatch",
            )

    def _check_muon(self) -> None:
        """Muon steps whole matrices, on the device, from 16-bit or fp32 weights."""
        training, parallel = self.training, self.parallel
        if training.optimizer is not Optimizer.MUON:
            return
        if parallel.zero >= 2 or parallel.zero_group is not None:
            raise ConfigError(
                "Muon steps whole matrices: its parameters are dealt to all data-parallel ranks, not cut",
                where="parallel.zero",
                expected="0 or 1, without zero_group",
                got=parallel.zero,
                nearest=1,
            )
        if parallel.copies > 1 or parallel.modules:
            raise ConfigError(
                "Muon with two copies of the model, or modules with parallel sizes of their own, is not modelled by"
                " this version",
                where="training.optimizer",
                expected="another optimizer, or one copy and no [parallel.modules]",
                got="muon",
                nearest="adam",
            )
        if training.offload_plan.optimizer or training.offload_plan.weights or self.fp8_weights is Fp8Weights.PRIMARY:
            raise ConfigError(
                "Muon with optimizer state or weights on the host, or with weights in fp8 only, is not modelled by"
                " this version",
                where="training.optimizer",
                expected="another optimizer, or none of these",
                got="muon",
                nearest="adam",
            )

    def _check_frozen_weights(self) -> None:
        """Packed weights stay whole on the device, and there are some."""
        frozen = self.training.frozen_weights
        if frozen is None:
            return
        has_frozen = any(not parameter.requires_grad for _, parameter in self.model.named_parameters())
        for where, fits, expected in (
            ("model", has_frozen, "a model with frozen weights"),
            ("training.precision", self.training.precision in (Precision.BF16, Precision.FP16), "bf16 or fp16"),
            ("parallel.zero", self.parallel.zero < 3, "0, 1 or 2: shards of packed weights are not modelled"),
            ("training.offload", not self.training.offload_plan.weights, "no weights on the host"),
        ):
            if not fits:
                raise ConfigError(
                    f"weights stored as {frozen.value} do not go with this",
                    where=where,
                    expected=f"{expected}, or no training.frozen_weights",
                    got=frozen.value,
                )

    @property
    def hides_gathers(self) -> bool:
        """Whether parameters are gathered during the next forwards: ``overlap.param_gather``, but not under Muon, whose
        whole parameters Megatron-LM gathers in the step (``LayerWiseDistributedOptimizer.allgather_params``), and not
        by broadcasts."""
        training = self.training
        is_gathered = training.parameter_sync is ParameterSync.ALL_GATHER
        return training.overlap.param_gather and training.optimizer is not Optimizer.MUON and is_gathered

    @property
    def moves_fp8_weights(self) -> bool:
        """Whether the optimizer writes weights in fp8 and gathers move them so. MXFP8's two copies differ, so that they
        are quantised from 16-bit weights that pass through the gradients' memory (Megatron-LM,
        ``--reuse-grad-buf-for-mxfp8-param-ag``)."""
        return self.fp8_weights is Fp8Weights.PRIMARY and self.training.fp8_recipe is not Fp8Recipe.MXFP8

    @property
    def gathers_fp8_weights(self) -> bool:
        """Whether ZeRO-3's shards are fp8 weights, gathered as such and transposed by every microbatch where products
        want that (Megatron-FSDP with ``--fp8-param-gather``, which keeps no transposed copies)."""
        return self.parallel.zero >= 3 and self.fp8_weights is Fp8Weights.PRIMARY

    @property
    def fp8_copies(self) -> int:
        """fp8 copies of an operand of two products: plain and transposed, or one where the device takes either layout
        and the scale is the tensor's (Transformer Engine, ``is_non_tn_fp8_gemm_supported``)."""
        is_tensorwise = self.training.fp8_recipe is Fp8Recipe.TENSORWISE
        return 1 if is_tensorwise and self.cluster.profile.fp8_layouts.value == 2 else 2

    @property
    def fp8_weights(self) -> Fp8Weights:
        """How often fp8 linears cast their weights: as told, else once an iteration where the whole weights stay
        (Megatron-LM) and in every microbatch where ZeRO-3 gathers them."""
        chosen = self.training.fp8_weights
        if chosen is not None:
            return chosen
        return Fp8Weights.MICROBATCH if self.parallel.zero >= 3 else Fp8Weights.ITERATION

    @cached_property
    def profile(self) -> DeviceProfile:
        """The device as the job's software and its fp8 recipe find it."""
        training = self.training
        return self.cluster.profile.scaled(training.fp8_recipe).under(
            training.software,
            self.attention_kernel,
            is_deterministic=training.attention_deterministic,
            has_aggregated_trees=has_aggregated_trees(training.software, training.software_date),
        )

    @property
    def attention_kernel(self) -> AttentionKernel | None:
        """The fused attention kernel: as told, else what the software called at its date; None: the profile's."""
        training = self.training
        return training.attention_kernel or usual_kernel(training.software, training.software_date)

    @property
    def attention_factors(self) -> AttentionFactors:
        """How much slower the attention kernel is than the profile's coefficients."""
        factors = self.cluster.profile.attention_factors(self.attention_kernel)
        return factors.deterministic() if self.training.attention_deterministic else factors

    @property
    def is_interlaced(self) -> bool:
        """Whether other stages may come between a microbatch's forward and its backward: in a pipeline, or where all
        forwards come first."""
        family = ALL_SCHEDULES.get(self.training.schedule)
        in_turn = family is not None and family.alternates
        return self.parallel.pp > 1 or not (in_turn or self.num_microbatches == 1)

    @property
    def gathers_once(self) -> bool:
        """Whether ZeRO-3 gathers parameters once an iteration, for the first forward of their chunk, and keeps them to
        its last backward, which reduces the gradients: ``reshard_after_forward`` off in a pipeline.

        So does PyTorch: its pipelines reshard a stage's parameters and reduce its gradients in the last backward only,
        and torchtitan's default policy keeps parameters after the forward where there is a pipeline.
        """
        parallel = self.parallel
        return parallel.zero == 3 and not parallel.reshard_after_forward and self.is_interlaced

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one data-parallel replica in one iteration."""
        return self.training.global_batch // (self.parallel.replicas * self.training.micro_batch)

    @property
    def shards_are_masters(self) -> bool:
        """Whether ZeRO-3 keeps its shards in the master weights' type only and gathers them cast: PyTorch's FSDP with a
        mixed-precision policy (2304.11277 §4.4)."""
        training = self.training
        is_mixed = training.master_dtype is not training.precision.tensor_dtype
        return is_mixed and self.parallel.zero >= 3 and training.software.kernels is Software.TORCH

    @property
    def stops_recomputation_early(self) -> bool:
        """Whether a second forward pass ends with the last kernel that is needed (``semu.nn.trace.early_stop``).

        PyTorch's checkpoint does, Megatron-LM's does not.
        """
        return self.training.software.kernels is Software.TORCH

    @property
    def sums_gradients_twice(self) -> bool:
        """Whether every microbatch's gradients are summed in the parameters' type and then in a wider one that is kept
        beside it: DeepSpeed's ``BF16_Optimizer``."""
        training = self.training
        is_wider = training.grad_dtype is not training.precision.tensor_dtype
        return is_wider and training.software is Software.MEGATRON_DEEPSPEED

    @property
    def bucket_dtype(self) -> DType | None:
        """Type of the buckets into which PyTorch's DistributedDataParallel copies all gradients (its documentation of
        ``gradient_as_bucket_view``): the parameters', also where a hook adds up in fp32 beside (nanotron); fp32 under
        autocast. None: there are none, as Megatron-LM's gradients lie in its buffers."""
        training = self.training
        if training.software.kernels is not Software.TORCH or training.gradient_as_bucket_view:
            return None
        return training.grad_dtype if training.autocast is not None else training.precision.tensor_dtype

    @property
    def bucket_elements(self) -> int | None:
        """Elements that fill a bucket of gradients that are reduced whole: PyTorch's DistributedDataParallel; None:
        Megatron-LM's rule."""
        if self.training.software.kernels is not Software.TORCH:
            return None
        return DDP_BUCKET_BYTES // self.training.precision.tensor_dtype.size_bytes

    @property
    def fsdp(self) -> Fsdp:
        """Which of PyTorch's FSDPs shards the parameters; None: under PyTorch with ZeRO-3, that of its date."""
        training = self.training
        if training.fsdp is not None:
            return training.fsdp
        if training.software.kernels is not Software.TORCH or self.parallel.zero < 3:
            return Fsdp.NONE
        is_first = training.software_date is not None and training.software_date < SECOND_SINCE
        return Fsdp.FIRST if is_first else Fsdp.SECOND

    @property
    def fuses_accumulation(self) -> bool:
        """Whether products for weight gradients add into the gradient buffers themselves.

        Autograd makes a tensor of every gradient and adds it (``AccumulateGrad``), or DistributedDataParallel copies
        it into its bucket; under FSDP only shards are added, unless they are reduced once. So does DeepSpeed.
        """
        software = self.training.software
        is_added = software.kernels is Software.TORCH and (self.parallel.zero < 3 or self.gathers_once)
        is_added |= software is Software.MEGATRON_DEEPSPEED
        return self.training.gradient_accumulation_fusion and not is_added

    @property
    def keeps_gathered_inputs(self) -> bool:
        """Whether a column-split linear keeps its gathered input for the weight's gradient; None: under PyTorch.

        Autograd saves what a product reads, which under DTensor's and nanotron's sequence parallelism is the whole
        input. Megatron-LM saves the rank's part and gathers it again (2205.05198 §4.2.2).
        """
        chosen = self.training.gathered_inputs
        return self.training.software.kernels is Software.TORCH if chosen is None else chosen is GatheredInputs.KEPT

    @property
    def overlaps_tensor_parallel(self) -> bool:
        """Whether tensor-parallel collectives run beside kernels that do not need them.

        Megatron-LM always hides the re-gathered input of a column-parallel linear and the reduction of its input
        gradient behind the gradients' products (2205.05198 §4.2.2); without sequence parallelism since
        ``ASYNC_REDUCTION_SINCE``.
        """
        chosen, date = self.training.overlap.tensor_parallel, self.training.software_date
        if chosen is not None:
            return chosen
        is_async = self.parallel.sequence_parallel or date is None or date >= ASYNC_REDUCTION_SINCE
        return self.training.software is Software.MEGATRON and is_async

    @property
    def splits_transfers(self) -> bool:
        """Whether each of the tensor-parallel ranks that hold the same activation sends its share between pipeline
        ranks, and the receivers gather the shares: without sequence parallelism, in Megatron-LM up to June 2023
        (2104.04473 §4.1, ``scatter_gather_tensors_in_pipeline``) and in DeepSpeed (``PartitionedTensor``)."""
        parallel, training = self.parallel, self.training
        if parallel.tp == 1 or parallel.pp == 1 or parallel.sequence_parallel or parallel.modules:
            return False
        is_early = training.software_date is not None and training.software_date < SCATTER_GATHER_UNTIL
        is_megatron = training.software is Software.MEGATRON and is_early
        return is_megatron or training.software is Software.MEGATRON_DEEPSPEED

    @property
    def exposed_exchanges(self) -> str:
        """Why exchanges of experts' tokens do not hide although ``overlap.expert_parallel`` asks; "" where they do."""
        return exposed_exchanges(self.model, self.parallel, self.training)

    @property
    def hides_exchanges(self) -> bool:
        """Whether exchanges of experts' tokens hide behind another microbatch (``overlap.expert_parallel``)."""
        return self.training.overlap.expert_parallel and not self.exposed_exchanges

    @property
    def overlaps_sends(self) -> bool:
        """Whether P2P sends run beside the sender's compute: as ``overlap.pipeline`` says, else with several virtual
        stages per rank, under a schedule from a file, and as the schedule declares (``ScheduleFamily``)."""
        chosen = self.training.overlap.pipeline
        if chosen is not None:
            return chosen
        family = ALL_SCHEDULES.get(self.training.schedule)
        declared = family is None or family.overlaps_sends
        return self.parallel.vpp > 1 or declared or bool(self.training.schedule_file)

    def _check_virtual_stages(self) -> None:
        pp, vpp, count = self.parallel.pp, self.parallel.vpp, self.num_microbatches
        if vpp == 1:
            return
        if pp == 1:
            raise ConfigError(
                "virtual stages need several pipeline ranks to take turns on",
                where="parallel.vpp",
                expected="vpp = 1, or pp >= 2",
                got=vpp,
                nearest=1,
            )
        family = ALL_SCHEDULES.get(self.training.schedule)
        if count % pp and family is not None and family.alternates and not self.training.schedule_file:
            per_step = self.parallel.replicas * self.training.micro_batch
            raise ConfigError(
                f"{count} microbatches are no multiple of pp = {pp}, as interleaved 1F1B (vpp = {vpp}) needs",
                where="training.global_batch",
                expected=f"a multiple of (dp x micro_batch) x pp = {per_step} x {pp}",
                got=self.training.global_batch,
                nearest=nearest_multiple(count, pp) * per_step,
            )
