"""A model from its HuggingFace config.json: what was understood of it, what it computes, how long it trains.

On the command line the same is one line: semu simulate config.json --cluster h100:2x8 --parallel dp8-tp2-ep8
"""

import semu
import semu_models
from semu_models.flop_formulas import flop_per_token

CONFIG = {  # Mixtral 8x7B (2401.04088 Table 1), in the keys of transformers 5
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "vocab_size": 32000,
}

read = semu_models.load_hf(CONFIG)  # or the path of a config.json
print(read.reading)
print(f"\n{read.model.num_parameters():,} parameters; GFLOP of training a token in a sequence of 4096:")
for convention, flop in (flop_per_token(read.model, 4096) or {}).items():
    print(f"  {convention:14} {flop / 1e9:8.2f}")

cluster = semu.Cluster("h100", nodes=2, gpus_per_node=8)
for sizes in (semu.Parallel(dp=8, tp=2, ep=8), semu.Parallel(dp=4, tp=2, pp=2, ep=4)):
    training = semu.Training(global_batch=128, seq_len=4096)
    job = semu.TrainingJob(read.model, cluster, sizes, training, semu.workload.text_batch())
    report = semu.simulate(job)
    peak = max(report.peak_memory_bytes) / 2**30
    print(f"{sizes.label():20} {report.iteration_time_s:6.3f} s, MFU {report.mfu:.1%}, peak {peak:.1f} GiB")
