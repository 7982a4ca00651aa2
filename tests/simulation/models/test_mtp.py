"""Multi-token prediction through ``semu.simulate``: against the slow reference, where it lies, how it is laid out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import job_of, text_items
from simulation.models.test_families import H, V, small_deepseek

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.parallel.layout import PipelineLayout
from semu.runfile.transformer import TransformerConfig
from semu.simulation import simulate
from semu_models.text.deepseek import deepseek_model


def mtp(depths: int, *, layers: int = 3) -> Model:
    return deepseek_model("deepseek", replace(small_deepseek(), layers=layers, mtp_layers=depths))


def mtp_job(depths: int, parallel: Parallel, **options: object) -> TrainingJob:
    return job_of(mtp(depths), text_items(2 * parallel.dp), parallel, **options)  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("depths", "recompute"), [(1, "none"), (1, "selective"), (2, "full"), (3, "none")])
@pytest.mark.parametrize("sizes", [{"pp": 3}, {"tp": 2, "pp": 2, "dp": 2, "ep": 2}], ids=str)
def test_multi_token_prediction(depths: int, sizes: dict[str, int], recompute: str) -> None:
    assert_tails_equal(mtp_job(depths, Parallel(**sizes), recompute=recompute))


def test_multi_token_prediction_when_the_pipeline_interleaves() -> None:
    assert_tails_equal(mtp_job(1, Parallel(pp=2, vpp=2)))


@pytest.mark.parametrize(
    ("layout", "pp", "vpp"),
    [
        ({"stages": "Et|t|tmL"}, 3, 1),
        ({"stages": "Ett|tm|L"}, 3, 1),
        ({"stages": "Et|t|tm|L"}, 2, 2),
        ({"layers": [2, 1]}, 2, 1),
        (None, 3, 1),
    ],
    ids=str,
)
def test_layouts_with_multi_token_prediction(layout: dict[str, object] | None, pp: int, vpp: int) -> None:
    told = PipelineLayout.of(layout) if layout is not None else None
    parallel = Parallel(pp=pp, vpp=vpp, layout=told, partition="parameters" if layout is not None else "layers")
    job = mtp_job(1, parallel)
    assert_tails_equal(job)
    last = simulate(job).ranks[-1].chunks
    assert "mtp" in last


@pytest.mark.parametrize(("depths", "text"), [(1, "Ett|tL"), (0, "Ett|tmL"), (1, "Ett|tmmL")])
def test_as_many_predictions_as_the_model_has(depths: int, text: str) -> None:
    with pytest.raises(ConfigError, match="layers of multi-token prediction") as caught:
        simulate(mtp_job(depths, Parallel(pp=2, layout=PipelineLayout.of({"stages": text}))))
    assert (caught.value.where, caught.value.nearest) == ("parallel.layout.stages", depths)


def test_predictions_share_tables_and_lie_at_the_end() -> None:
    model, fewer = mtp(2), mtp(1).num_parameters()
    second = [p.numel for path, p in model.named_parameters() if path.startswith("mtp.layers.1.")]
    assert model.num_parameters() == fewer + sum(second) + H
    tables = [path for path, p in model.named_parameters() if p.shape == (V, H)]
    assert tables == ["llm.embedding.weight", "mtp.head.main.projection.weight"]
    report = simulate(mtp_job(2, Parallel(pp=3)))
    alone = simulate(mtp_job(2, Parallel()))
    # the shared table lies on two ranks
    assert sum(report.static_memory_bytes) - sum(alone.static_memory_bytes) == 18 * V * H
    assert "mtp" in report.ranks[-1].chunks and "mtp" not in report.ranks[0].chunks


def test_no_prediction_is_the_plain_model() -> None:
    plain = deepseek_model("deepseek", small_deepseek())
    assert [module.name for module in plain.modules] == ["llm"]
    assert [name for name, _ in plain.modules[0].body.named_children()][-1] == "head"


def test_a_run_file_may_ask_for_predictions() -> None:
    table = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 128, "ffn": 96, "gated_mlp": True, "mtp_layers": 2}
    config = TransformerConfig.from_table(table)
    model = config.model()
    assert TransformerConfig.from_table(config.to_table()) == config
    assert [module.name for module in model.modules] == ["llm", "mtp"]
    layer = 4 * 64**2 + 3 * 64 * 96 + 2 * 64
    assert model.num_parameters() == 2 * 128 * 64 + 64 + 4 * layer + 2 * (2 * 64**2 + 3 * 64)
    plain = TransformerConfig.from_table({**table, "gated_mlp": False, "mtp_layers": 0, "tied_embeddings": True})
    assert [module.name for module in plain.model().modules] == ["llm"]
    assert "mtp_layers" not in plain.to_table()
    tied = replace(plain, mtp_layers=1)
    assert_tails_equal(job_of(tied.model(), text_items(2), Parallel(tp=2, pp=2)))
    with pytest.raises(ConfigError, match="not a number of layers"):
        replace(plain, mtp_layers=-1)
