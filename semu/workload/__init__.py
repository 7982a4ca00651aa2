"""What a microbatch holds, and where microbatches come from: generators with published shapes, or metadata files.

Files:

    batch.py          Microbatch, AbstractBatch, text sequences, the columns that operator costs depend on
    packing.py        greedy packing
    distributions.py  published shapes of data sets
    vlm.py, t2v.py    vision-language and text-to-video batches
    mixed.py          batches of models with several encoders: text, images, audio
    samples.py        samples of text, images and sounds, packed and cut into microbatches
    derived.py        streams that a model makes of others
    metadata.py       JSONL metadata; recorded.py: batches made of it
    listed.py         microbatches that are packed already; stream.py: files of many iterations
    options.py        run.toml's ``[batch]``

Everything here is numbers about data, never data, and independent of any model.
"""

from semu.workload.batch import AbstractBatch, Microbatch, TextBatch, shape_columns, text_batch
from semu.workload.distributions import TextPerImage
from semu.workload.fixed import FixedBatch, fixed_batch
from semu.workload.listed import ListedBatch, listed_batch
from semu.workload.metadata import Contents, Metadata, read_metadata
from semu.workload.mixed import MixedBatch, mixed_batch
from semu.workload.options import BatchKind, make_batch
from semu.workload.pairs import PairBatch, pair_batch
from semu.workload.recorded import FileBatch, file_batch
from semu.workload.stream import read_stream, write_stream
from semu.workload.t2v import T2vBatch, VideoTokenizer, t2v_batch
from semu.workload.vlm import VlmBatch, vlm_batch

__all__ = [
    "AbstractBatch",
    "BatchKind",
    "Contents",
    "FileBatch",
    "FixedBatch",
    "ListedBatch",
    "Metadata",
    "Microbatch",
    "MixedBatch",
    "PairBatch",
    "T2vBatch",
    "TextBatch",
    "TextPerImage",
    "VideoTokenizer",
    "VlmBatch",
    "file_batch",
    "fixed_batch",
    "listed_batch",
    "make_batch",
    "mixed_batch",
    "pair_batch",
    "read_metadata",
    "read_stream",
    "shape_columns",
    "t2v_batch",
    "text_batch",
    "vlm_batch",
    "write_stream",
]
