"""Run files: every key is read or refused, errors say where, and a dumped run loads back to the same job."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from cli.test_command import GUESSED_DEVICE
from hypothesis import given
from hypothesis import strategies as st

import semu
import semu_models
from semu.errors import ConfigError, ScheduleError
from semu.job import Precision, Recompute, Training, TrainingJob
from semu.runfile import Overrides, Places, format_toml, load_run, make_job, resolve_run
from semu.simulation import prepare, simulate
from semu.simulation.estimate import evaluate
from semu.workload import make_batch

DESIGN_EXAMPLE = """\
[model]                       # exactly one of: name | hf_config | transformer
name = "gpt3-175b"            # a semu_models name
frozen = []                   # module paths, e.g. ["encoder", "llm"]
[cluster]
device = "h100"               # profile name, or the path of a profile TOML
nodes = 96
gpus_per_node = 8
[parallel]
dp = 48
tp = 8
pp = 2
vpp = 1                       # model chunks per rank
cp = 1
ep = 1
sequence_parallel = true
zero = 1                      # 0 | 1 (distributed optimizer) | 2 | 3 (FSDP)
[training]
micro_batch = 1
global_batch = 384
seq_len = 4096
precision = "bf16"
grad_dtype = "fp32"
optimizer = "adam"
recompute = "full"            # none | selective | full | a list of module kinds
schedule = "1f1b"
[overlap]                     # which communication may hide behind computation
grad_reduce = true
param_gather = true
tensor_parallel = false
pipeline = false
[batch]
kind = "text"                 # text | vlm | t2v | file
"""

TRANSFORMER = """\
[model.transformer]
layers = 4
hidden = 1024
heads = 8
vocab = 32000
[cluster]
device = "h100"
[parallel]
dp = 2
tp = 4
"""


def write(folder: Path, text: str, name: str = "run.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def parts(job: TrainingJob) -> tuple[object, ...]:
    """What makes two jobs the same; models have no equality of their own."""
    shapes = [(name, p.shape, p.requires_grad) for name, p in job.model.named_parameters()]
    cluster = job.cluster.profile, job.cluster.nodes, job.cluster.gpus_per_node
    return job.model.name, shapes, cluster, job.parallel, job.training, job.batch


def refused(run: str, *assignments: str, **flags: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_run(run, assignments, **flags)
    return caught.value


# -- sources -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(semu_models.SETUPS))
def test_a_setup_is_its_own_job(name: str) -> None:
    setup = semu_models.SETUPS[name]
    job = load_run(name)
    assert job.model.num_parameters() == semu_models.build(setup.model).num_parameters()
    assert (job.cluster.label(), job.parallel) == (setup.cluster, setup.parallel)
    read = {spec.stream for module in job.model.modules for spec in module.inputs}
    assert job.batch == make_batch(setup.batch, streams=read, mergings=job.model.mergings)
    assert job.training == replace(setup.training, seq_len=setup.training.seq_len or job.batch.default_seq_len)
    assert resolve_run(name).notes == ()


def test_the_documented_file_loads(tmp_path: Path) -> None:
    job = load_run(write(tmp_path, DESIGN_EXAMPLE))
    assert job.model.name == "gpt3-175b"
    assert (job.cluster.label(), job.parallel.label()) == ("h100:96x8", "dp48-tp8-pp2")
    assert (job.training.recompute, job.training.seq_len, job.num_microbatches) == (Recompute.FULL, 4096, 8)


@pytest.mark.parametrize(
    "name",
    ["llama3-8b", "Llama-3-8B", "llama_3_8b", "LLAMA3 8B", "llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"],
)
def test_the_name_of_a_model_is_a_run_in_any_spelling(name: str) -> None:
    job = load_run(name, cluster="h100:1x8", parallel="tp2-pp2")
    assert (job.model.name, job.parallel.label(), job.training.seq_len) == ("llama3-8b", "dp2-tp2-pp2", 8192)


def any_fits(name: str, memory: str, cluster: str) -> bool:
    """Whether a layout fits on a cluster: every one with tp and pp that divide the GPUs is simulated."""
    nodes, per_node = map(int, cluster.split(":")[1].split("x"))
    for tp, pp, recompute in product((1, 2, 4, 8), range(1, 17), ("none", "full")):
        if nodes * per_node % (tp * pp) or tp > per_node:
            continue
        settings = [memory, f"training.recompute={recompute}"]
        with suppress(ConfigError, ScheduleError):
            if semu.evaluate(load_run(name, settings, cluster=cluster, parallel=f"tp{tp}-pp{pp}")).fits:
                return True
    return False


@pytest.mark.parametrize(
    ("name", "memory", "chosen", "smaller"),
    [
        ("gpt2", "8e10", "h100:1x1", None),
        ("gpt2-xl", "1e10", "h100:1x4", "h100:1x2"),
        pytest.param("llama3-8b", "9e9", "h100:3x8", "h100:2x8", marks=pytest.mark.slow),
    ],
)
def test_a_model_alone_gets_the_fewest_gpus_on_which_it_fits(
    name: str, memory: str, chosen: str, smaller: str | None
) -> None:
    memory = f"cluster.override.memory_bytes={memory}"
    run = resolve_run(name, Overrides([memory]))
    cluster = run.job().cluster
    assert f"h100:{cluster.nodes}x{cluster.gpus_per_node}" == chosen
    assert semu.evaluate(run.job()).fits and any_fits(name, memory, chosen)
    (note,) = (note for note in run.notes if "cluster: not given" in note)
    if smaller is None:
        assert "none fits" not in note
    else:
        assert f"none fits on {smaller.partition(':')[2]}, the next smaller" in note
        assert not any_fits(name, memory, smaller)


def test_a_name_is_no_job_inside() -> None:
    for function in (evaluate, prepare):
        with pytest.raises(ConfigError, match=r"semu\.load_run makes one") as caught:
            function("gpt2")  # type: ignore[operator]
        assert (caught.value.where, caught.value.got) == ("job", "'gpt2'")


@pytest.mark.parametrize(("name", "cluster", "parallel"), [("gpt2", "h100:1x8", "tp2"), ("lm-7b", None, None)])
def test_a_run_is_simulated_by_its_name(name: str, cluster: str | None, parallel: str | None) -> None:
    run = resolve_run(name, Overrides(("training.global_batch=16",), cluster, parallel))
    expected = simulate(run.job())
    found = semu.simulate(name, ["training.global_batch=16"], cluster=cluster, parallel=parallel)
    assert (found.iteration_time_s, found.held_memory_bytes) == (expected.iteration_time_s, expected.held_memory_bytes)
    assert found.settings == run.settings() and set(run.notes) <= set(found.warnings) and not expected.settings
    assert not found.reasons and not found.advice


def test_options_of_a_run_beside_a_job_are_refused() -> None:
    job = resolve_run("lm-7b").job()
    for where, call in (
        ("cluster", lambda: semu.simulate(job, cluster="h100:1x8")),
        ("parallel", lambda: semu.simulate(job, parallel="tp2")),
        ("overrides", lambda: semu.simulate(job, ["parallel.tp=2"])),
    ):
        with pytest.raises(ConfigError, match="options of a run beside a job") as caught:
            call()
        assert caught.value.where == where
    with pytest.raises(ConfigError, match="advice") as caught:
        semu.simulate(job, samples=3, advice=True)
    assert caught.value.where == "samples"


def test_search_and_grid_of_no_run_are_refused_as_load_run_does() -> None:
    for function in (semu.load_run, semu.simulate, semu.search, semu.grid):
        with pytest.raises(ConfigError, match="unknown") as caught:
            function("gtp2")  # type: ignore[operator]
        assert caught.value.nearest == "gpt2"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm-7b", "gpt3-175b"])
def test_search_and_grid_of_a_name(name: str) -> None:
    searched, of_job = (semu.search(run, rollouts=0) for run in (name, load_run(name)))
    assert searched.to_dicts() == of_job.to_dicts()
    found, expected = (semu.grid(run, {"micro_batch": [1, 2]}, top=1) for run in (name, load_run(name)))
    assert found.to_dicts() == expected.to_dicts()


def test_a_model_by_its_name_in_python() -> None:
    for name, cluster, parallel in (("llama3-70b", "h100:16x8", "tp8-pp4"), ("gpt2", "a100-80g:1x8", "tp2")):
        job = semu.load_run(name, cluster=cluster, parallel=parallel)
        assert semu.evaluate(job) == semu.evaluate(resolve_run(name, Overrides((), cluster, parallel)).job())


@pytest.mark.parametrize(("name", "rows"), [("gpt2-large", 50257), ("whisper-large-v3", 51866)])
def test_a_token_table_that_tp_does_not_divide_is_padded_as_megatron_does(name: str, rows: int) -> None:
    run = resolve_run(name, Overrides(cluster="h100:1x8", parallel="tp4"))
    padded = -(-rows // (128 * 4)) * 128 * 4
    tables = {
        parameter.shape[0]
        for part in run.model.modules
        for _, parameter in part.body.named_parameters()
        if parameter.shape[0] in (rows, padded)
    }
    assert tables == {padded}
    assert any("vocab_multiple" in note and str(rows) in note for note in run.notes)
    assert semu_models.build(name).num_parameters() < run.model.num_parameters()


def test_an_unknown_setup_is_answered_with_the_nearest() -> None:
    assert refused("vlm-mm").nearest == "vlm-m"


def test_a_missing_file_is_answered_with_a_similar_one(tmp_path: Path) -> None:
    write(tmp_path, DESIGN_EXAMPLE)
    error = refused(str(tmp_path / "runn.toml"))
    assert (error.where, error.nearest) == (str(tmp_path / "runn.toml"), "run.toml")
    assert refused(str(tmp_path / "weather.toml")).nearest is None


def test_a_syntax_error_has_file_and_line(tmp_path: Path) -> None:
    run = write(tmp_path, DESIGN_EXAMPLE.replace("tp = 8", "tp = = 8"))
    line = DESIGN_EXAMPLE.split("\n").index("tp = 8") + 1
    error = refused(run)
    assert (error.where, error.got) == (f"{run}:{line}", "tp = = 8")


def test_a_key_given_twice_and_an_open_string_have_a_line(tmp_path: Path) -> None:
    assert refused(write(tmp_path, "[parallel]\ntp = 1\ntp = 2\n")).where == f"{tmp_path / 'run.toml'}:3"
    assert refused(write(tmp_path, "[model]\nname = '''x\n\n")).where == f"{tmp_path / 'run.toml'}:4"


def test_bytes_that_are_no_text_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"[model]\nname = '\xff'\n")
    assert refused(str(path)).where == f"{path}:2"


def test_windows_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf" + DESIGN_EXAMPLE.replace("\n", "\r\n").encode())
    assert load_run(path).parallel.dp == 48


# -- places --------------------------------------------------------------------------------------------------------
MARKED = '''\
parallel.dp = 2                      # @ parallel.dp
[model] # @ model
frozen = [
  "[cluster]",
  "nodes = 3", # not a key
]
name = """
[training]
seq_len = 1
"""                                  # a value over four lines
[ model . "transformer" ]            # @ model.transformer
"layers" = 3                         # @ model.transformer.layers

[cluster]                            # @ cluster
device = 'x # y'                     # @ cluster.device
override = { a = 1, "b.c" = { d = 2 } }  # @ cluster.override cluster.override.a cluster.override.b.c.d
override2.e.f = 3                    # @ cluster.override2 cluster.override2.e cluster.override2.e.f
'''


def test_every_key_is_found_on_its_line() -> None:
    tomllib.loads(MARKED)
    places = Places("f.toml", MARKED)
    wanted = {
        key: number
        for number, line in enumerate(MARKED.split("\n"), start=1)
        for key in line.partition("# @ ")[2].split()
    }
    assert len(wanted) == 12
    wanted |= {"model.frozen": 3, "model.name": 7}
    assert {key: places.where(key) for key in wanted} == {key: f"f.toml:{line} {key}" for key, line in wanted.items()}


def test_a_key_that_is_not_there_stands_at_its_table() -> None:
    places = Places("f.toml", MARKED)
    assert places.where("cluster.nodes") == "f.toml:14 cluster.nodes"
    assert places.where("training.seq_len") == "f.toml training.seq_len"


def test_deep_errors_get_a_place(tmp_path: Path) -> None:
    run = resolve_run(write(tmp_path, TRANSFORMER))
    error = ConfigError("heads", where="llm.layers.0.attention", got="tp = 4")
    run.places.locate(error)
    assert error.where == f"{run.places.name}:10 parallel.tp (llm.layers.0.attention)"
    untouched = ConfigError("a line", where="meta.jsonl:3", got="x")
    run.places.locate(untouched)
    assert untouched.where == "meta.jsonl:3"


# -- the schema ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "line", "key", "nearest"),
    [
        ("tp = 8", "tpp = 8", 10, "parallel.tpp", "tp"),
        ("[overlap]", "[overlaps]", 26, "overlaps", "overlap"),
        ("seq_len = 4096", "seqlen = 4096", 20, "training.seqlen", "seq_len"),
        ("tp = 8", "micro_batch = 8", 10, "parallel.micro_batch", "training.micro_batch"),
        ('kind = "text"', 'kind = "text"\nkindd = 1', 33, "batch.kindd", "kind"),
        ('device = "h100"', 'device = "h1000"', 5, "cluster.device", "h100"),
        ('name = "gpt3-175b"', 'name = "gpt-175b"', 2, "model.name", "gpt3-175b"),
        ('schedule = "1f1b"', 'schedule = "1f1"', 25, "training.schedule", "1f1b"),
        ('recompute = "full"', 'recompute = "ful"', 24, "training.recompute", "full"),
        ('grad_dtype = "fp32"', 'grad_dtype = "fp23"', 22, "training.grad_dtype", "fp32"),
    ],
)
def test_an_unknown_name_says_where_and_what_was_meant(
    tmp_path: Path, old: str, new: str, line: int, key: str, nearest: str
) -> None:
    run = write(tmp_path, DESIGN_EXAMPLE.replace(old, new, 1))
    error = refused(run)
    assert (error.where, error.nearest) == (f"{run}:{line} {key}", nearest)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("parallel.tp=true", "an integer"),
        ("parallel.tp=2.0", "an integer"),
        ('parallel.tp="2"', "an integer"),
        ("parallel.sequence_parallel=1", "true or false"),
        ("model.name=3", "a string"),
        ("model.frozen=vit", "a list of strings"),
        ("training.recompute=1", "a string or a list of strings"),
        ("overlap.pipeline=yes", "true or false"),
        ("training=3", "[training]"),
        ("cluster.override=3", "[cluster.override]"),
        ("training.seq_len=2026-01-01", "an integer"),
    ],
)
def test_a_wrong_type_is_refused(assignment: str, expected: str) -> None:
    error = refused("lm-7b", assignment)
    assert (error.where, error.expected) == (f"--set {assignment.partition('=')[0]}", expected)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("parallel.ep=4", "1"),
        ("parallel.zero=4", "0 or 1 or 2 or 3"),
        ("training.optimizer=shampoo", "adam"),
        ("parallel.etp=2", "a model with experts"),
        ("training.moe_imbalance=1.5", "a model with experts"),
        ("training.moe_capacity_factor=1.5", "a model with experts"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(assignment: str, expected: str) -> None:
    error = refused("lm-7b", assignment)
    key = assignment.partition("=")[0]
    assert error.where == f"--set {key}"
    assert error.expected is not None
    assert expected in error.expected


@pytest.mark.parametrize(
    ("assignments", "where", "nearest"),
    [
        (("parallel.vpp=2", "parallel.pp=1", "parallel.tp=8"), "--set parallel.vpp", 1),
        (("parallel.vpp=2", "training.global_batch=70"), "--set training.global_batch", 68),
        (("parallel.vpp=2", "training.global_batch=2", "parallel.dp=1"), "--set training.global_batch", 4),
    ],
)
def test_virtual_stages_that_do_not_fit_are_refused(assignments: tuple[str, ...], where: str, nearest: int) -> None:
    error = refused("lm-7b", *assignments)
    assert (error.where, error.nearest) == (where, nearest)


def test_virtual_stages_in_a_file(tmp_path: Path) -> None:
    """A batch that nobody gave is a multiple of pp microbatches; sends overlap unless the file says otherwise."""
    text = '[model]\nname = "lm-7b"\n[cluster]\ndevice = "h800"\nnodes = 3\n[parallel]\ntp = 8\npp = 3\nvpp = 2\n'
    job = load_run(write(tmp_path, text))
    assert (job.parallel.vpp, job.num_microbatches, job.overlaps_sends) == (2, 15, True)
    assert not load_run(write(tmp_path, text + "[overlap]\npipeline = false\n")).overlaps_sends
    assert load_run(write(tmp_path, text), ["parallel.vpp=1"]).num_microbatches == 16
    run = write(tmp_path, text + "[training]\nglobal_batch = 16\n")
    error = refused(run)
    assert (error.where, error.nearest) == (f"{run}:11 training.global_batch", 15)
    again = write(tmp_path, resolve_run(write(tmp_path, text)).to_toml())
    assert load_run(again).overlaps_sends


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "fp32"])
def test_other_precisions_pass(precision: str) -> None:
    assert load_run("lm-7b", [f"training.precision={precision}"]).training.precision is Precision(precision)


def test_one_model_and_a_device_are_needed(tmp_path: Path) -> None:
    assert "no model" in refused(write(tmp_path, '[cluster]\ndevice = "h100"\n')).message
    assert "twice" in refused(write(tmp_path, TRANSFORMER), "model.name=lm-7b").message
    run = write(tmp_path, '[model]\nname = "lm-7b"\n[cluster]\nnodes = 1\n')
    assert refused(run).where == f"{run}:3 cluster.device"
    assert load_run(run, cluster="h100:1x1").cluster.label() == "h100:1x1"


# -- sizes that do not fit together --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sizes", "dp"), [("", 32), ("tp = 4\npp = 2", 4), ("cp = 2\npp = 16", 1), ("dp = 1\ntp = 8\npp = 4", 1)]
)
def test_replicas_fill_the_gpus_where_the_file_does_not_say(tmp_path: Path, sizes: str, dp: int) -> None:
    path = tmp_path / "run.toml"
    cluster = '[cluster]\ndevice = "h100"\nnodes = 4\n'
    path.write_text(f'[model]\nname = "gpt3-175b"\n{cluster}[parallel]\n{sizes}\n[training]\nseq_len = 2048\n')
    assert resolve_run(str(path), Overrides((), None, None, None, None)).job().parallel.dp == dp


def test_sizes_that_do_not_fit_together(tmp_path: Path) -> None:
    run = write(tmp_path, DESIGN_EXAMPLE)
    wrong_cluster = refused(run, cluster="h100:48x8")
    assert (wrong_cluster.where, wrong_cluster.nearest) == (f"{run}:8 parallel", "dp = 24")
    wrong_batch = refused(run, "training.global_batch=100")
    assert (wrong_batch.where, wrong_batch.nearest) == ("--set training.global_batch", 96)
    assert refused(run, "parallel.tp=0").where == "--set parallel.tp"
    assert refused("vlm-m", parallel="dp2").where == "--parallel parallel"


@pytest.mark.parametrize(
    ("run", "flags", "nearest"),
    [
        ("vlm-m", {"cluster": "h800:8x8", "parallel": "dp1-tp8-pp4"}, "dp = 2"),
        ("vlm-l", {"cluster": "h800:3x8"}, "pp = 3"),  # tp8-pp8
        ("vlm-l", {"cluster": "h800:512x8", "parallel": "dp3-tp8-pp8"}, "dp = 64"),
        ("lm-7b", {"cluster": "h800:1x2", "parallel": "dp3-tp4"}, "nodes = 6"),
        ("lm-7b", {"cluster": "h800:1x8", "parallel": "dp2-tp3"}, "nodes = 1, gpus_per_node = 6"),
        ("lm-7b", {"cluster": "h800:8x8", "parallel": "dp2-pp3"}, "pp = 32"),
        ("lm-7b", {"cluster": "h800:16x8", "parallel": "dp2-pp3"}, "nodes = 1, gpus_per_node = 6"),  # 34 blocks < 64
        ("lm-7b", {"cluster": "h800:3x5", "parallel": "dp3-tp16"}, None),
    ],
)
def test_a_cluster_of_the_wrong_size_gets_a_size_that_loads(
    run: str, flags: dict[str, str], nearest: str | None
) -> None:
    assert refused(run, **flags).nearest == nearest
    if nearest is not None:
        changes = [part.replace(" ", "") for part in nearest.split(", ")]
        tables = {"dp": "parallel", "pp": "parallel", "nodes": "cluster", "gpus_per_node": "cluster"}
        job = load_run(run, [f"{tables[change.partition('=')[0]]}.{change}" for change in changes], **flags)
        assert job.cluster.num_gpus == job.parallel.num_gpus


# -- what the batch and the model decide ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("run", "assignment", "seq_len"),
    [
        ("vlm-s", "batch.seed=1", 8192),
        ("vlm-s", "training.seq_len=4096", 4096),
        ("t2v-s", "batch.seed=1", None),
        ("lm-7b", "training.micro_batch=1", 4096),
    ],
)
def test_the_context_length_that_is_used_is_dumped(run: str, assignment: str, seq_len: int | None) -> None:
    resolved = resolve_run(run, Overrides([assignment]))
    assert tomllib.loads(resolved.to_toml())["training"].get("seq_len") == seq_len
    assert resolved.job().training.seq_len == seq_len


def test_a_file_without_a_context_length_gets_the_batchs(tmp_path: Path) -> None:
    assert resolve_run(write(tmp_path, TRANSFORMER)).config["training"]["seq_len"] == 2048


EYES = """\
[model]
name = "vlm-s"
[cluster]
device = "h800"
nodes = 2
[parallel]
tp = 4
pp = 4
[training]
global_batch = 2
[batch]
kind = "file"
path = "meta.jsonl"
"""


@pytest.mark.parametrize("line", ['{"text_tokens": 3000, "images": 0}', '{"text_tokens": 3000}'])
def test_a_file_without_images_is_what_the_model_reads(line: str, tmp_path: Path) -> None:
    write(tmp_path, f"{line}\n" * 4, "meta.jsonl")
    run = resolve_run(write(tmp_path, EYES))
    assert (run.config["batch"]["contents"], run.config["training"]["seq_len"]) == ("vlm", 8192)
    first = run.batch.microbatches(2, 1)[0]
    assert first.streams == {"text": (3000, 3000), "vision": (), "vision_tokens": ()}
    report = simulate(run.job())
    assert report.tokens == 12000
    assert report.fits
    again = resolve_run(write(tmp_path, run.to_toml(), "again.toml"))
    assert again.config == {**run.config, "batch": {**run.config["batch"], "path": str(tmp_path / "meta.jsonl")}}
    language = resolve_run(write(tmp_path, EYES.replace("vlm-s", "llama3-8b"), "language.toml"))
    assert (language.config["batch"]["contents"], language.config["training"]["seq_len"]) == ("text", 2048)


def test_a_stream_that_nobody_reads_is_told() -> None:
    (note,) = resolve_run("lm-7b", Overrides(["batch.kind=vlm"])).notes
    assert "'vision'" in note
    assert "lm-7b" in note
    (note,) = resolve_run("t2v-s", Overrides(["model.name=llama3-8b"])).notes
    assert "'video'" in note


def test_a_model_that_does_not_train_is_told() -> None:
    assert resolve_run("vlm-s", Overrides(['model.frozen=["encoder"]'])).notes == ()
    (note,) = resolve_run("vlm-s", Overrides(['model.frozen=["encoder", "llm"]'])).notes
    assert "every parameter is frozen" in note


def test_layers_can_be_frozen_without_the_adapter() -> None:
    job = load_run("vlm-s", ['model.frozen=["vit.embedding", "vit.layers"]'])
    trainable = [name for name, p in job.model.named_parameters() if p.requires_grad and name.startswith("vit.")]
    assert trainable
    assert all(name.startswith("vit.adapter.") for name in trainable)
    whole = load_run("vlm-s", ['model.frozen=["encoder"]'])
    assert not [name for name, p in whole.model.named_parameters() if p.requires_grad and name.startswith("vit.")]


# -- overrides -----------------------------------------------------------------------------------------------------
def test_overrides_as_a_table() -> None:
    """Values as in Python, or as a TOML file has them; None: the default."""
    texts = ["training.seq_len=512", "training.recompute=full", "parallel.tp=2", "parallel.pp=1"]
    table = {"training.seq_len": 512, "training.recompute": Recompute.FULL, "parallel.tp": 2, "parallel.pp": 1}
    assert resolve_run("gpt2", Overrides(table)).config == resolve_run("gpt2", Overrides(texts)).config
    assert load_run("vlm-m", {"training.recompute": None}).training.recompute is Training().recompute
    alike = [semu.simulate("gpt2", changes, cluster="h100:8") for changes in (texts, table)]
    assert alike[0].iteration_time_s == alike[1].iteration_time_s


@pytest.mark.parametrize(
    ("changes", "where", "said"),
    [
        ("training.seq_len=512", "overrides", "not a list of assignments"),
        ({"training.seq_len": "many"}, "--set training.seq_len", "not an integer"),
        ({"no key": 3}, "overrides", "not an assignment"),
        ({3: 3}, "overrides", "not an assignment"),
        (["training.seq_len"], "--set", "not an assignment"),
        ({"training.sek_len": 3}, "--set training.sek_len", "did you mean 'seq_len'?"),
    ],
)
def test_overrides_that_are_none(changes: Any, where: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_run("gpt2", changes)
    assert raised.value.where == where and said in str(raised.value)


def test_the_size_of_a_setup_changes_its_global_batch() -> None:
    setup = semu_models.SETUPS["vlm-m"]
    run = resolve_run("vlm-m", Overrides(cluster="h800:8x8", parallel="dp8-tp2-pp4"))
    job = run.job()
    assert job.num_microbatches == setup.training.global_batch // setup.training.micro_batch  # its dp is 1
    assert job.training.global_batch == 8 * setup.training.global_batch
    assert [str(job.training.global_batch) in note for note in run.notes] == [True]
    assert (job.parallel.zero, job.parallel.sequence_parallel) == (
        setup.parallel.zero,
        setup.parallel.sequence_parallel,
    )
    bigger = load_run("vlm-m", ["training.micro_batch=2"])
    assert bigger.training.global_batch == setup.training.global_batch
    rounded = load_run("lm-7b", ["training.micro_batch=5"])
    assert (rounded.num_microbatches, rounded.training.global_batch) == (73 // 5, 73 // 5 * 5)
    fixed = load_run("vlm-m", ["training.global_batch=8"], cluster="h800:8x8", parallel="dp8-tp2-pp4")
    assert fixed.num_microbatches == 1


def test_a_file_keeps_its_global_batch(tmp_path: Path) -> None:
    run = write(tmp_path, DESIGN_EXAMPLE)
    job = load_run(run, cluster="h100:4x8", parallel="dp4-tp8")
    assert (job.training.global_batch, job.num_microbatches) == (384, 96)


def test_a_file_without_a_global_batch_gets_the_setups_rule(tmp_path: Path) -> None:
    run = resolve_run(write(tmp_path, TRANSFORMER))
    assert run.job().num_microbatches == semu_models.setups.default_microbatches(1)
    assert len(run.notes) == 1


def test_set_wins_over_flags_and_flags_over_the_file(tmp_path: Path) -> None:
    run = write(tmp_path, DESIGN_EXAMPLE)
    job = load_run(run, ["parallel.zero=0", "cluster.nodes=8"], cluster="h800:2x8", parallel="dp8-tp8", profile="h200")
    assert (job.cluster.label(), job.parallel.label(), job.parallel.zero) == ("h200:8x8", "dp8-tp8-pp1", 0)
    assert load_run("vlm-s", seed=7).batch == make_batch({"kind": "vlm", "seed": 7})
    assert load_run("vlm-s", ["batch.seed=8"], seed=7).batch == make_batch({"kind": "vlm", "seed": 8})


def test_a_seed_without_effect_is_told() -> None:
    assert resolve_run("lm-7b", Overrides(seed=1)).notes != ()
    assert resolve_run("vlm-s", Overrides(seed=1)).notes == ()


def test_set_reads_toml_values() -> None:
    run = resolve_run(
        "vlm-m",
        Overrides(
            [
                'model.frozen = ["encoder"]',
                "cluster.override.mem_bytes_per_s=1e12",
                'cluster.override."flop_per_s.bf16" = 5e14',
                "batch={kind = 'vlm', images_mean = 3.5}",
                "training.recompute=none",
            ]
        ),
    )
    job = run.job()
    assert run.config["batch"] == {"kind": "vlm", "images_mean": 3.5}
    assert job.training.recompute is Recompute.NONE
    assert job.cluster.profile.mem_bytes_per_s.value == 1e12
    assert job.cluster.profile.number("flop_per_s.bf16").value == 5e14
    llm = next(module for module in job.model.modules if module.name == "llm")
    assert job.model.num_parameters(trainable_only=True) == llm.body.num_parameters()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("parallel.tp", "--set"),
        ("=3", "--set"),
        ("a b=3", "--set"),
        ("x=1\ny=2", "--set x"),
        ("training.seq_len=", "--set training.seq_len"),
        ("training.seq_len=1 2", "--set training.seq_len"),
        ("model.name.x=3", "--set model.name.x"),
        ("cluster.override.nic=1", "--set cluster.override.nic"),
    ],
)
def test_a_bad_assignment_is_refused(text: str, where: str) -> None:
    assert refused("lm-7b", text).where == where


def test_bad_flags_name_themselves() -> None:
    assert refused("lm-7b", cluster="h800:x8").where == "--cluster"
    assert refused("lm-7b", cluster="h80:1x8").nearest == "h800"
    assert refused("lm-7b", cluster="absent.toml:1x8").where == "--cluster absent.toml"
    assert refused("lm-7b", parallel="dp8-xp2").where == "--parallel"
    assert refused("lm-7b", profile="h8").where == "--profile cluster.device"
    assert refused("vlm-s", seed=-1).where == "--seed batch.seed"


# -- [model.transformer] -------------------------------------------------------------------------------------------
def test_a_plain_transformer_has_the_parameters_of_the_formula(tmp_path: Path) -> None:
    layers, hidden, vocab, positions = 4, 1024, 32000, 2048
    run = write(tmp_path, TRANSFORMER)
    untied = load_run(run).model.num_parameters()
    # 2104.04473 §5.1, and the final norm's 2 h; the output table is another V h.
    closed_form = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden)) + vocab * hidden + 2 * hidden
    assert untied == closed_form + vocab * hidden
    tied = load_run(run, ["model.transformer.tied_embeddings=true", f"model.transformer.positions={positions}"])
    assert tied.model.num_parameters() == closed_form + positions * hidden


def test_a_gated_transformer_is_a_llama(tmp_path: Path) -> None:
    table = "layers = 32\nhidden = 4096\nffn = 14336\nheads = 32\nkv_heads = 8\nvocab = 128256\ngated_mlp = true\n"
    job = load_run(write(tmp_path, f'[model.transformer]\n{table}[cluster]\ndevice = "h100"\ngpus_per_node = 1\n'))
    theirs = semu_models.llama3_8b()
    assert [(n, p.shape) for n, p in job.model.named_parameters()] == [
        (n, p.shape) for n, p in theirs.named_parameters()
    ]
    ours, others = (dict(model.modules[0].body.named_modules("llm")) for model in (job.model, theirs))
    assert {path: type(module) for path, module in ours.items() if "layers" in path} == {
        path: type(module) for path, module in others.items() if "layers" in path
    }
    assert (ours["llm.layers.0.attention"].rotary, ours["llm.layers.0.mlp"].gated) == (True, True)


@pytest.mark.parametrize(
    ("assignment", "key", "nearest"),
    [
        ("heads=7", "heads", 4),
        ("kv_heads=3", "kv_heads", 2),
        ("layers=0", "layers", 1),
        ("dropout=1", "dropout", 0),
        ("gated_mlp=true", "ffn", None),
    ],
)
def test_an_impossible_transformer(tmp_path: Path, assignment: str, key: str, nearest: int | None) -> None:
    error = refused(write(tmp_path, TRANSFORMER), f"model.transformer.{assignment}")
    assert error.where is not None
    assert error.where.endswith(f" model.transformer.{key}")
    assert error.nearest == nearest


def test_a_transformer_needs_its_sizes(tmp_path: Path) -> None:
    run = write(tmp_path, TRANSFORMER.replace("vocab = 32000\n", ""))
    assert refused(run).where == f"{run}:1 model.transformer.vocab"


# -- files beside the run file -------------------------------------------------------------------------------------
@pytest.fixture
def folder_run(tmp_path: Path) -> Path:
    """A run file that names a profile and a metadata file beside it."""
    folder = tmp_path / "runs"
    folder.mkdir()
    write(folder, GUESSED_DEVICE.replace("guessed", "mine"), "mine.toml")
    write(folder, '{"text_tokens": 2000}\n' * 64, "meta.jsonl")
    text = TRANSFORMER.replace('"h100"', '"mine.toml"') + '[batch]\nkind = "file"\npath = "meta.jsonl"\n'
    return Path(write(folder, text))


def test_paths_start_from_the_run_file(folder_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_run.parents[1])
    job = load_run("runs/run.toml")
    assert job.cluster.profile.name == "mine"
    assert job.batch.microbatches(2, 1)[0].tokens("text") == 2000
    assert load_run("runs/run.toml", cluster="runs/mine.toml:1x8").cluster.profile == job.cluster.profile


def test_a_corrupt_line_is_named(folder_run: Path) -> None:
    with (folder_run.parent / "meta.jsonl").open("a") as file:
        file.write('{"text_tokens": oops}\n')
    assert refused(str(folder_run)).where == f"{folder_run.parent / 'meta.jsonl'}:65"


# -- dumping -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(semu_models.SETUPS))
def test_a_dumped_setup_loads_back(name: str, tmp_path: Path) -> None:
    run = resolve_run(name)
    again = resolve_run(write(tmp_path, run.to_toml()))
    assert again.config == run.config
    assert again.notes == ()
    assert parts(again.job()) == parts(run.job())


def test_a_dumped_file_loads_back_from_anywhere(
    folder_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder_run.parent)
    changes = [
        'model.frozen=["llm.embedding"]',
        'cluster.override."efficiency.matmul.flop"=0.5',
        "cluster.override.host.launch_s=3e-6",
        "model.transformer.dropout=0.1",
        "overlap.pipeline=true",
        "training.grad_dtype=bf16",
    ]
    run = resolve_run("run.toml", Overrides(changes))
    wanted, text = parts(run.job()), run.to_toml()
    monkeypatch.chdir(tmp_path)
    again = resolve_run(write(tmp_path, text))
    assert parts(again.job()) == wanted
    assert again.to_toml() == text


KEYS = st.text(min_size=1, max_size=8)
SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text())
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))
TABLES = st.dictionaries(KEYS, st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=3)), max_size=4)


@given(TABLES)
def test_written_toml_reads_back(table: dict[str, object]) -> None:
    text = format_toml(table)
    assert tomllib.loads(text) == table
    assert format_toml(tomllib.loads(text)) == text


def test_what_toml_cannot_say_is_refused() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        format_toml({"a": None})


def test_sharding_is_read_and_written_back(tmp_path: Path) -> None:
    text = DESIGN_EXAMPLE.replace("pp = 2", "pp = 1").replace("dp = 48", "dp = 96")
    options = "zero = 3\nzero_group = 8\nreshard_after_forward = false"
    text = text.replace("zero = 1                      #", f"{options} #")
    resolved = resolve_run(write(tmp_path, text))
    parallel = resolved.job().parallel
    assert (parallel.zero, parallel.zero_group, parallel.reshard_after_forward) == (3, 8, False)
    again = load_run(write(tmp_path, resolved.to_toml(), "again.toml"))
    assert parts(again) == parts(resolved.job())
    error = refused(str(tmp_path / "run.toml"), "parallel.zero_group=7")
    assert (error.where, error.nearest) == ("--set parallel.zero_group", 6)


def test_precision_and_what_is_outside_the_model() -> None:
    words = {
        "precision": "fp8",
        "fp8_weights": "microbatch",
        "master_dtype": "bf16",
        "optimizer_state_dtype": "bf16",
        "gradient_clipping": "true",
        "overhead_s": "0.25",
        "jitter": "0.03",
        "straggler_share": "0.01",
        "straggler_slowdown": "1.5",
    }
    training = load_run("lm-7b", [f"training.{key}={value}" for key, value in words.items()]).training
    found = {key: getattr(training, key) for key in words}
    assert {key: getattr(value, "value", value) for key, value in found.items()} == words | {
        "gradient_clipping": True,
        "overhead_s": 0.25,
        "jitter": 0.03,
        "straggler_share": 0.01,
        "straggler_slowdown": 1.5,
    }
    assert load_run("lm-7b", ["training.precision=fp16", "training.loss_scaling=true"]).training.loss_scaling
    assert refused("lm-7b", "training.loss_scaling=true").where.endswith("training.loss_scaling")  # type: ignore[union-attr]
    assert refused("lm-7b", "training.jitter=-1").nearest == 0


# -- context parallelism -----------------------------------------------------------------------------------------------
CONTEXT = """\
[model]
name = "llama3-8b"
[cluster]
device = "h100"
nodes = 2
gpus_per_node = 8
[parallel]
tp = 4
cp = 4
cp_kind = "all_gather"
[training]
seq_len = 131072
global_batch = 2
"""


def test_context_parallelism_in_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, CONTEXT)
    job = load_run(path)
    assert (job.parallel.cp, job.parallel.context_kind.value, job.num_microbatches) == (4, "all_gather", 2)
    dumped = resolve_run(path).to_toml()
    assert 'cp_kind = "all_gather"' in dumped
    assert parts(load_run(write(tmp_path, dumped, "again.toml"))) == parts(job)
    short = load_run(path, parallel="dp2-tp4-cp2")
    assert (short.parallel.label(), short.parallel.context_kind.value) == ("dp2-tp4-pp1-cp2", "all_gather")


@pytest.mark.parametrize(
    ("assignments", "where", "nearest"),
    [
        (["training.seq_len=131070"], "--set training.seq_len", 131072),
        (["parallel.cp_kind=all_to_all"], "run.toml:9 parallel.cp (llm.layers.0.attention)", 2),
        (["training.attention=unfused"], "--set training.attention", "fused"),
        (["parallel.cp=8"], "--set parallel", "nodes = 4"),
    ],
)
def test_context_parallelism_that_does_not_fit(
    assignments: list[str], where: str, nearest: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, CONTEXT)
    with pytest.raises(ConfigError) as caught:
        resolved = resolve_run("run.toml", Overrides(assignments))
        with resolved.places.located():
            simulate(resolved.job())
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


# -- memory strategies ---------------------------------------------------------------------------------------------
MEMORY_RUN = """\
[model.transformer]
layers = 2
hidden = 256
heads = 4
vocab = 512

[cluster]
device = "h100"
gpus_per_node = 1

[training]
global_batch = 2
seq_len = 256
recompute = "full"
recompute_policy = "every_second_matmul"
offload = ["activations", "optimizer"]
offload_layers = ["*.layers.0"]
cross_entropy = "fused"
gradient_accumulation_fusion = false
"""


def test_memory_strategies_in_a_run_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(MEMORY_RUN)
    training = load_run(path).training
    assert training.offload == ("activations", "optimizer")
    assert training.offload_layers == ("*.layers.0",)
    assert (training.recompute_policy.value, training.cross_entropy.value) == ("every_second_matmul", "fused")  # type: ignore[union-attr]
    assert training.gradient_accumulation_fusion is False
    again = tmp_path / "again.toml"
    again.write_text(resolve_run(path).to_toml())
    assert load_run(again).training == training


@pytest.mark.parametrize(
    ("assignment", "where"),
    [
        ("training.offload=gradients", "training.offload"),
        ("training.offload_fraction=0.5", "training.offload_fraction"),
        ("training.offload_layers=0", "training.offload_layers"),
        ("training.recompute_policy=op", "training.recompute_policy"),
        ("training.recompute_every=0", "training.recompute_every"),
        ("training.cross_entropy=liger", "training.cross_entropy"),
    ],
)
def test_bad_memory_strategies_are_told_with_their_place(assignment: str, where: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(MEMORY_RUN)
    with pytest.raises(ConfigError) as caught:
        load_run(path, [assignment])
    assert caught.value.where is not None
    assert caught.value.where.endswith(where)
    assert caught.value.expected is not None


# -- a parallelism per modality module -----------------------------------------------------------------------------
def test_a_module_s_parallelism_is_read_dumped_and_reported(tmp_path: Path) -> None:
    run = resolve_run("vlm-m", Overrides(("parallel.modules.vit.tp=1",)))
    text = run.to_toml()
    assert tomllib.loads(text)["parallel"]["modules"] == {"vit": {"tp": 1}}
    again = load_run(write(tmp_path, text))
    assert again.parallel == run.job().parallel
    report = simulate(again)
    sizes = report.to_json()["job"]["parallel"]["modules"]  # type: ignore[index]
    assert sizes == {
        "vit": {"dp": 8, "tp": 1, "pp": 4, "cp": 1, "sequence_parallel": False, "item_groups": 8},
        "llm": {"dp": 1, "tp": 8, "pp": 4, "cp": 1, "sequence_parallel": True, "item_groups": 1},
    }
    assert "dp1-tp8-pp4 (vit: tp1)" in repr(report).splitlines()[0]
    assert any("spread over 8 groups" in note for note in report.warnings)
    assert report.breakdown_s["exposed_communication"]["reshard"] > 0  # type: ignore[index]
    assert "modules" not in tomllib.loads(resolve_run("vlm-m").to_toml())["parallel"]
    assert "modules" not in simulate(load_run("vlm-m")).to_json()["job"]["parallel"]  # type: ignore[index]


def test_where_a_module_s_size_is_wrong(tmp_path: Path) -> None:
    text = resolve_run("vlm-m").to_toml() + "\n[parallel.modules.vit]\ntp = 3\n"
    line = text.splitlines().index("tp = 3") + 1
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_run(path)
    assert caught.value.where == f"{path}:{line} parallel.modules.vit.tp"
    assert (caught.value.got, caught.value.nearest) == (3, 2)
    error = refused("vlm-m", "parallel.modules.vti.tp=1")
    assert (error.where, error.nearest) == ("--set parallel.modules.vti", "vit")


@pytest.mark.parametrize("setup", ["lm-7b", "vlm-s"])
def test_no_microbatch_of_a_setup(setup: str) -> None:
    """The global batch of a setup follows from its size of a microbatch, once that is one."""
    with pytest.raises(ConfigError, match="not a valid number") as caught:
        resolve_run(setup, Overrides(("training.micro_batch=0",))).job()
    assert (caught.value.where, caught.value.nearest) == ("--set training.micro_batch", 1)


def test_jobs_of_programs_share_a_model_when_asked_to() -> None:
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 128}

    def _job(tp: int, hidden: int, *, shares_model: bool) -> TrainingJob:
        tables = {
            "model": {"transformer": sizes | {"hidden": hidden}, "frozen": ["llm.embedding"] if tp == 2 else []},
            "cluster": {"device": "h100"},
            "parallel": {"tp": tp},
        }
        return make_job(tables, shares_model=shares_model)

    one = _job(1, 64, shares_model=True)
    assert _job(1, 64, shares_model=True).model is one.model
    assert _job(1, 64, shares_model=False).model is not one.model
    for tp, hidden in ((2, 64), (1, 128)):
        other, own = (_job(tp, hidden, shares_model=shares) for shares in (True, False))
        assert other.model is not one.model
        assert other.model.num_parameters() == own.model.num_parameters()
        assert other.model.num_parameters(trainable_only=True) == own.model.num_parameters(trainable_only=True)
