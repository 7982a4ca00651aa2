"""Training options of a row with a ``multimodal`` object: ``training_of_multimodal``.

What a source says of its software, in a run file's words:

* PyTorch compiles where it is told to (``torch_inductor``), and is eager otherwise; ``cuda_graph`` takes launches away.
* ``amp`` in the precision is ``torch.autocast``, in fp16 with a loss scale; its norms are in 16 bits where the source
  says ``low_precision_norms``.
* xFormers, in ``attention``, ran the first FlashAttention.
* NeMo's towers of images and text were modules of before Transformer Engine until ``TOWERS_FUSED_SINCE``: scores in
  memory, biases in kernels of their own. This is a belief of this file, with no launch file at hand.
* PyTorch's own optimizers run as lists of kernels (``foreach``); ``ema`` is a moving average of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.nn.trace.eager import Autocast

TOWERS_FUSED_SINCE = "2024-03"
"""NeMo's release after 24.01, whose vision towers could be Megatron core's."""


def training_of_multimodal(row: Mapping[str, object], table: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    """Keys of ``[training]``, and what was taken for what the row does not say, a sentence each.

    Args:
        row: the whole row. table: its ``multimodal`` object.
    """
    software = row.get("software")
    if software not in ("megatron", "torch"):
        return {}, []
    training: dict[str, Any] = {"software": software}
    remarks: list[str] = []
    if isinstance(table.get("channels_last"), bool):
        training["channels_last"] = table["channels_last"]
    if software == "torch":
        is_compiled = table.get("torch_inductor") is True
        if not is_compiled:
            remarks.append("torch.compile is not named: eager modules")
        training |= {"eager_modules": not is_compiled, "optimizer_kernels": "foreach"}
    elif "vision" in table and str(row.get("software_date") or "9999") < TOWERS_FUSED_SINCE:
        remarks.append("towers before Transformer Engine: unfused attention and biases")
        training |= {"eager_modules": True, "attention": "unfused"}
    if table.get("cuda_graph") is True:
        training["launch"] = False
    if "amp" in str(row.get("precision", "")).lower():
        is_low = table.get("low_precision_norms") is True
        training["loss_scaling"] = row.get("precision_kind") == "fp16"
        training["autocast"] = (Autocast.LOW_PRECISION_NORMS if is_low else Autocast.FP32_NORMS).value
    if "xformers" in str(table.get("attention", "")).lower():
        training["attention_kernel"] = "fa1"
    if table.get("ema") is True:
        training["weight_average"] = True
    return training, remarks
