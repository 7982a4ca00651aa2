"""Packed documents over four context ranks, dealt by work: semu's permutation, loaded and checked by PyTorch."""

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import semu

settings = ["training.attention_mask=document", "parallel.cp_balance=lpt", "parallel.cp_kind=all_gather"]
found = semu.context("llama-3.2-1b", [*settings, "training.seq_len=4096"], cluster="h100:1x4", parallel="cp4")
print(found)
lengths = [700, 1348]  # one microbatch: two documents in a sequence of 2,048 tokens
runs = [run for n in lengths for run in (("document", 0, 0), ("text", -1, n))]
semu.write_permutations(found.job, "permutation.npz", [semu.masks.Spans.of_runs([runs])])

data = {name: torch.from_numpy(array) for name, array in np.load("permutation.npz").items() if name[:2] == "0/"}
order, counts = data["0/permutation"], data["0/counts"].tolist()
document = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))
q, k, v = torch.randn(3, 1, 2, 2048, 16, generator=torch.Generator().manual_seed(0)).unbind()
outputs, first = [], 0
for rank, count in enumerate(counts):  # each on a GPU of its own, with all keys and values gathered in order
    mine = order[first : first + count]
    rows = [data["0/tile_ptr"][i : i + 2].tolist() for i in torch.where(data["0/row_rank"] == rank)[0]]
    full, cut = torch.zeros(2, len(rows), 16, dtype=torch.bool)
    for i, (begin, end) in enumerate(rows):
        where = data["0/tile_full"][begin:end]
        full[i, data["0/tile_key"][begin:end].long()] = where
        cut[i, data["0/tile_key"][begin:end].long()] = ~where
    as_lists = [
        table for own in (cut, full) for table in (own.sum(1), own.int().argsort(dim=1, descending=True, stable=True))
    ]
    lists = [table.int()[None, None] for table in as_lists]
    see = lambda b, h, i, j, mine=mine: (mine[i] >= j) & (document[mine[i]] == document[j])  # noqa: E731
    block_mask = BlockMask.from_kv_blocks(*lists, mask_mod=see, seq_lengths=(count, 2048))
    outputs.append(flex_attention(q[:, :, mine], k, v, block_mask=block_mask))
    first += count
attended = torch.cat(outputs, dim=2)[:, :, data["0/inverse"]]
mask = torch.ones(2048, 2048).tril().bool() & (document[:, None] == document)
whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
print("as on one rank:", torch.allclose(attended, whole, atol=1e-5))
