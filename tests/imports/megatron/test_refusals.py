"""What cannot be read, contradicts itself or is not modelled is refused, with a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from semu.cli import main
from semu.errors import ConfigError
from semu.imports.megatron import read_arguments, read_megatron

SMALL = {
    **{"num-layers": "4", "hidden-size": "64", "num-attention-heads": "4", "seq-length": "32"},
    **{"max-position-embeddings": "32", "micro-batch-size": "1", "vocab-size": "100"},
}


def script(*words: str, without: str = "", nodes: str = "1", head: str = "") -> str:
    """One argument a line, the first on line 2 + the lines of ``head``."""
    lines = [f"    --{name} {value} \\" for name, value in SMALL.items() if name != without]
    more = [f"    {word} \\" for word in words]
    launch = f"torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py \\"
    return "\n".join([*([head] if head else []), launch, *more, *lines, "", ""])


def refusal(text: str, **options: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_megatron(text, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("words", "where", "message", "nearest"),
    [
        (("--group-query-attention", "--num-query-groups 3"), "arguments:3 --num-query-groups", "4 heads in 3", 2),
        (("--tensor-model-parallel-size 8",), "arguments:2 --tensor-model-parallel-size", "does not divide by 8", 4),
        (("--global-batch-size 12",), "arguments:2 --global-batch-size", "a global batch of 12 does not divide", 8),
        (
            ("--num-experts 8", "--disable-bias-linear", "--expert-model-parallel-size 8", "--moe-enable-deepep"),
            "arguments:5 --moe-enable-deepep",
            "DeepEP with the dispatcher allgather",
            "--moe-token-dispatcher-type flex beside it",
        ),
        (("--swiglu", "--squared-relu"), "arguments:3 --squared-relu", "several activations", None),
        (("--bf16", "--fp16"), "arguments:3 --fp16", "--bf16 and --fp16", None),
        (("--bf16 1",), "arguments:2 --bf16", "--bf16 is a switch", None),
        (("--fp8-format hybrid",), "arguments:2 --fp8-format", "fp8 without bf16", None),
        (("--normalization RMSnorm",), "arguments:2 --normalization", "unknown value", "RMSNorm"),
        (("--recompute-granularity full",), "arguments:2 --recompute-granularity", "without a method", None),
        (
            ("--pipeline-model-parallel-size 2", "--num-layers-per-virtual-pipeline-stage 3"),
            "arguments:3 --num-layers-per-virtual-pipeline-stage",
            "4 layers do not divide",
            1,
        ),
        (("--num-experts 4", "--moe-router-topk 5"), "arguments:3 --moe-router-topk", "5 of 4 experts", 4),
        (
            ("--num-experts 4", '--moe-layer-freq "([0]*1+[1]*2)"'),
            "arguments:3 --moe-layer-freq",
            "a pattern of 3",
            None,
        ),
        (("--num-experts 4", '--moe-layer-freq "open(1)"'), "arguments:3 --moe-layer-freq", "not a pattern", None),
        (
            ("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-layout 'Et|t|ttL'"),
            "arguments:3 --pipeline-model-parallel-layout",
            "3 stages on 2",
            2,
        ),
        (("--num-distributed-optimizer-instances 3",), "arguments:2", "8 replicas in 3 instances", 2),
    ],
)
def test_contradictions(words: tuple[str, ...], where: str, message: str, nearest: object) -> None:
    error = refusal(script(*words), allow_unmodelled=True)
    assert error.where is not None and error.where.startswith(where)
    assert message in error.message
    assert nearest is None or error.nearest == nearest


@pytest.mark.parametrize("name", ["num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size"])
def test_missing_sizes(name: str) -> None:
    assert refusal(script(without=name)).message == f"no --{name}"


def test_missing_positions_and_vocabulary() -> None:
    assert refusal(script(without="max-position-embeddings")).message == "no --max-position-embeddings"
    error = refusal(script("--tokenizer-type SentencePieceTokenizer", without="vocab-size"))
    assert (error.where, error.nearest) == ("arguments:2 --tokenizer-type", "--set model.transformer.vocab=N")


def test_tokenizers_of_the_hub() -> None:
    """A tokenizer that belongs to a shipped model has its vocabulary; one in files has the caller's."""
    words = ("--tokenizer-type HuggingFaceTokenizer", "--tokenizer-model Qwen/Qwen2.5-7B")
    assert read_megatron(script(*words, without="vocab-size")).tables["model"]["transformer"]["vocab"] == 152064
    words = ("--tokenizer-type GPTSentencePieceTokenizer", "--tokenizer-model ${DATA}/multilingual_2_256k.model")
    run = read_megatron(script(*words, without="vocab-size"))
    assert run.tables["model"]["transformer"]["vocab"] == 256000
    assert any("by the name multilingual_2_256k.model" in note for note in run.reading.notes)
    words = ("--tokenizer-type HuggingFaceTokenizer", "--tokenizer-model ${TOKENIZERS}/own")
    error = refusal(script(*words, without="vocab-size"))
    assert "128256 Llama 3" in str(error.expected)
    text = script(*words, without="vocab-size")
    assert read_arguments(text, "x.sh", vocab="777").tables["model"]["transformer"]["vocab"] == 777


def test_sizes_that_are_none() -> None:
    error = refusal(script("--hidden-size=65", without="hidden-size"))
    assert (error.where, error.nearest) == ("arguments:4 --num-attention-heads", 5)
    error = refusal(script("--num-layers x", without="num-layers"))
    assert (error.where, error.expected, error.got) == ("arguments:2 --num-layers", "an integer", "x")
    error = refusal(script("--num-layers 0", without="num-layers"))
    assert (error.where, error.nearest) == ("arguments:2 --num-layers", 1)
    error = refusal(script("--num-layers", without="num-layers"))
    assert error.message == "--num-layers takes one value"
    assert read_megatron(script("--num-layers x")).tables["model"]["transformer"]["layers"] == 4, "the last one counts"


def test_short_tables_of_positions() -> None:
    error = refusal(script("--max-position-embeddings 16", without="max-position-embeddings"))
    assert (error.where, error.nearest) == ("arguments:2 --max-position-embeddings", 32)


def test_all_that_is_not_modelled_in_one_message() -> None:
    words = ("--spec a b", "--window-size 128", "--num-layer 3", "--fp4-format e2m1", "--moe-latent-size 8")
    error = refusal(script(*words))
    assert error.message.startswith("5 settings that may change time or memory are not modelled by this version: ")
    assert error.got == "--spec --window-size --num-layer --fp4-format --moe-latent-size"
    for line, word in enumerate(words, start=2):
        assert f"{word} (line {line})" in error.message
    assert "unknown, did you mean --num-layers?" in error.message
    assert (error.where, error.nearest) == ("arguments:2", "--num-layers")
    assert "--allow-unmodelled" in str(error.expected)
    run = read_megatron(script(*words), allow_unmodelled=True)
    names = [word.split()[0] for word in words]
    assert [(row.key, row.line) for row in run.reading.unmodelled] == [
        (name, line) for line, name in enumerate(names, start=2)
    ]
    assert run.tables["training"]["left_out"] == [f"{name[2:]} 0.1" for name in names]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--position-embedding-type relative", "--position-embedding-type"),
        ("--bf16 --fp8-format hybrid --fp8-recipe custom", "--fp8-recipe"),
        ("--experimental-attention-variant gated_delta_net", "--experimental-attention-variant"),
        ("--moe-latent-size 64", "--moe-latent-size"),
        ("--something-new 3", "--something-new"),
    ],
)
def test_another_model_or_arithmetic_is_refused(words: str, name: str) -> None:
    error = refusal(script(words))
    assert error.got == name


@pytest.mark.parametrize("flag", ["--use-torch-fsdp2", "--use-megatron-fsdp"])
def test_muon_in_shards_is_refused_as_by_the_program(flag: str) -> None:
    error = refusal(script("--optimizer dist_muon", flag))
    assert error.got == flag and "--optimizer dist_muon" in str(error)


@pytest.mark.parametrize(
    ("words", "name", "spread"),
    [
        ("--attention-dropout 0.0", "--attention-dropout", 0.01),
        (
            "--num-experts 8 --disable-bias-linear --expert-model-parallel-size 8 --moe-token-dispatcher-type flex "
            "--moe-flex-dispatcher-backend hybridep",
            "--moe-flex-dispatcher-backend",
            0.02,
        ),
        ("--attention-backend unfused --no-masked-softmax-fusion", "--no-masked-softmax-fusion", 0.1),
        ("--no-bias-gelu-fusion", "--no-bias-gelu-fusion", 0.04),
        ("--position-embedding-type mrope", "--position-embedding-type", 0.005),
        ("--context-parallel-size 2 --cp-comm-type p2p a2a", "--cp-comm-type", 0.03),
        ("--moe-router-dtype fp32", "--moe-router-dtype", 0.02),
        ("--moe-router-load-balancing-type sinkhorn", "--moe-router-load-balancing-type", 0.02),
        ("--empty-unused-memory-level 1", "--empty-unused-memory-level", 0.02),
        ("--optimizer muon --muon-no-split-qkv", "--muon-no-split-qkv", 0.01),
        ("--moe-quite-new 3", "--moe-quite-new", 0.03),
    ],
)
def test_small_differences_widen_the_interval(words: str, name: str, spread: float) -> None:
    run = read_megatron(script(words))
    row = next(row for row in run.reading.small if row.key == name)
    assert "%" in row.text
    assert f"{name[2:]} {spread:g}" in run.tables["training"]["left_out"]
    assert any(name in warning for warning in run.reading.warnings)


def test_a_small_difference_of_memory_alone_leaves_the_interval() -> None:
    run = read_megatron(script("--use-precision-aware-optimizer --exp-avg-dtype bf16"))
    assert [row.key for row in run.reading.small] == ["--exp-avg-sq-dtype"]
    assert "left_out" not in run.tables["training"]
    assert run.tables["training"]["optimizer_state_dtype"] == "fp32"


def test_order_of_ranks() -> None:
    words = ("--use-tp-pp-dp-mapping", "--pipeline-model-parallel-size 2")
    assert read_megatron(script(*words, nodes="2")).tables["parallel"]["rank_order"] == "tp-cp-pp-dp"
    assert "rank_order" not in read_megatron(script(words[1], nodes="2")).tables["parallel"]


@pytest.mark.parametrize(
    "words",
    [
        "--no-masked-softmax-fusion",
        "--no-bias-gelu-fusion --disable-bias-linear",
        "--empty-unused-memory-level 0",
        "--rotary-percent 1.0",
        "--optimizer-offload-fraction 1.0",
        "--num-query-groups 3",
        "--moe-router-load-balancing-type aux_loss",
        "--lr-warmup-iters 5 --no-save-optim --wandb-project x",
    ],
)
def test_values_that_change_nothing(words: str) -> None:
    with_them, without = read_megatron(script(words)), read_megatron(script())
    if "disable-bias-linear" not in words:
        assert with_them.tables == without.tables
    assert words.split()[0] in [row.key for row in with_them.reading.ignored]


def test_what_the_script_does_not_say() -> None:
    error = refusal(script("--ffn-hidden-size $FFN"))
    assert error.where == "arguments:2 --ffn-hidden-size"
    assert "$FFN (line 2: not set in the script)" in error.message
    run = read_megatron(script("--ffn-hidden-size $FFN"), defined={"FFN": "96"})
    assert run.tables["model"]["transformer"]["ffn"] == 96
    read_megatron(script("--save $1 --data-path $DATA $OTHER"))
    for words in ("--bf16 $EXTRA", "$EXTRA --bf16", "--mock-data $EXTRA", "--bf16 $1"):
        run = read_megatron(script(words))
        assert any("is set nowhere and taken as empty" in note for note in run.reading.notes)
        run = read_megatron(script(words), defined={"EXTRA": "--swiglu --lr 1", "1": "--swiglu"})
        assert run.tables["model"]["transformer"]["gated_mlp"]
    for words in ("--bf16 $(extra)", "--bf16 x$EXTRA"):
        error = refusal(script(words))
        assert error.where == "arguments:2" and "may hold arguments: " in error.message
    read_megatron(script("--save `pwd`/$1 --data-path $DATA/$(date) --tensorboard-dir $(mktemp -d)"))


def test_gpus_that_are_no_whole_replicas() -> None:
    with pytest.raises(ConfigError) as caught:
        read_megatron(script("--pipeline-model-parallel-size 3"), "h100:1x8")
    error = caught.value
    assert error.message == "8 GPUs do not divide by tensor x pipeline x context = 3"
    assert (error.got, error.nearest) == (8, 6)


def test_size_of_the_cluster() -> None:
    run = read_megatron(script(nodes="$NNODES"))
    assert run.tables["cluster"] == {"device": "h100", "nodes": 1, "gpus_per_node": 8}
    assert any("the fewest whole nodes that hold 1 ranks" in note for note in run.reading.notes)
    words = ("--pipeline-model-parallel-size 4", "--tensor-model-parallel-size 4")
    assert read_megatron(script(*words, nodes="$NNODES")).tables["cluster"]["nodes"] == 2
    run = read_megatron(script("--global-batch-size 2", nodes="$NNODES"))
    assert run.tables["cluster"] == {"device": "h100", "nodes": 1, "gpus_per_node": 2}, "a batch for two replicas"
    assert read_megatron(script(nodes="$NNODES"), defined={"NNODES": "2"}).tables["parallel"]["dp"] == 16
    assert read_megatron(script(nodes="$NNODES"), "h800:4x8").tables["parallel"]["dp"] == 32
    words = ("--num-layers 12", "--pipeline-model-parallel-size 12")
    run = read_megatron(script(*words))
    assert run.tables["cluster"]["nodes"] == 3, "a script for one node holds no 12 stages on whole nodes"
    assert any("8 GPUs do not hold the sizes, taken as 24" in note for note in run.reading.notes)
    error = refusal(script("--pipeline-model-parallel-size 3"), cluster="h800:4x8")
    assert (error.where, error.nearest) == ("--cluster h800:4x8", 30)


def test_no_command_and_several() -> None:
    assert refusal("A=1\necho hello\n").message == "no command that starts training"
    error = refusal(script() + script("--swiglu"))
    assert (error.message, error.got) == ("2 commands that start training", "line 1, line 10")
    read_megatron(script() + script())


def test_unterminated_quote() -> None:
    error = refusal(script(head="A='x\nB=1"))
    assert (error.where, error.message) == ("arguments:1", "a quote that is not closed")


def test_logs() -> None:
    begin, end = "------------------------ arguments ------------------------", "-------- end of arguments --------"
    rows = {name.replace("-", "_"): value for name, value in SMALL.items()} | {"world_size": "8"}

    def log(rows: dict[str, str], ending: str = end) -> str:
        return "\n".join([begin, *(f"  {name} ........ {value}" for name, value in rows.items()), ending, ""])

    assert read_megatron(log(rows)).tables["cluster"] == {"device": "h100", "nodes": 1, "gpus_per_node": 8}
    assert refusal(log(rows, "")).message == "a block of arguments without an end"
    error = refusal(log(rows | {"world_size": "12"}))
    assert (error.where, error.message) == ("arguments:9 world_size", "12 GPUs do not make nodes of 8")
    error = refusal(log(rows | {"data_parallel_size": "4"}))
    assert (error.where, error.nearest) == ("arguments:10 data_parallel_size", 8)
    error = refusal(log(rows | {"apply_rope_fusion": "False", "position_embedding_type": "rope", "some_new": "3"}))
    assert error.got == "some_new"
    read_megatron(log(rows | {"apply_rope_fusion": "False", "some_new": "False"}))


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "run.sh"
    place.write_text(script("--spec x"))
    assert main(["import", str(place), "-o", str(tmp_path / "run.toml")]) == 2
    assert f"{place}:2: a setting that may change time or memory is not modelled" in capsys.readouterr().err
    assert main(["import", str(place), "-o", str(tmp_path / "run.toml"), "--allow-unmodelled"]) == 0
    assert "not modelled, left out as asked (the interval is wider for it) (1)" in capsys.readouterr().out
    assert main(["import", str(place), "--define", "x"]) == 2
    assert "--define: not a variable" in capsys.readouterr().err
    experts = ("--num-experts 4", "--disable-bias-linear", "--moe-token-dispatcher-type alltoall")
    place.write_text(script("--expert-model-parallel-size 8", *experts))
    assert main(["import", str(place)]) == 2
    assert f"{place}:2 --expert-model-parallel-size parallel.ep" in capsys.readouterr().err
    (tmp_path / "bad.bin").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_megatron(tmp_path / "bad.bin")
    with pytest.raises(ConfigError, match="cannot read the file"):
        read_megatron(tmp_path / "none.sh")


@pytest.mark.parametrize("program", ["pretrain_bert.py", "./pretrain_t5.py", "/opt/megatron/pretrain_mamba.py"])
def test_programs_of_other_models_are_refused(program: str) -> None:
    error = refusal(script().replace("pretrain_gpt.py", program), allow_unmodelled=True)
    assert "trains another model than a GPT" in error.message
    assert error.where == "arguments:1"
    assert error.got == program


def test_sizes_without_end_are_refused_at_once() -> None:
    huge = "9" * 20
    error = refusal(script(f"--num-attention-heads {huge}", without="num-attention-heads"))
    assert "does not divide into" in error.message
    assert error.nearest == 64
    error = refusal(
        script(
            f"--hidden-size {huge}",
            f"--num-attention-heads {huge}",
            "--group-query-attention",
            f"--num-query-groups {int(huge) - 1}",
            without="num-attention-heads",
        ).replace("    --hidden-size 64 \\\n", "")
    )
    assert "groups" in error.message
