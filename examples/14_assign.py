"""Which sample goes where: 50,000 drawn samples, a JSONL file, assigned to the microbatches of three models."""

import json
from pathlib import Path

import numpy as np

import semu

COUNT = 50_000


def write_samples(path: Path, merge: int) -> Path:
    """Text of log-normal lengths, with one to five images each where ``merge`` patches make a token (0: none)."""
    generator = np.random.default_rng(0)
    text = np.clip(np.exp(generator.normal(5, 1, COUNT)), 4, 2000).astype(int).tolist()
    images = np.minimum(generator.geometric(0.5, COUNT), 5).tolist()
    sides = iter(np.clip(np.exp(generator.normal(2.2, 0.5, sum(images))), 3, 24).astype(int).tolist())
    with path.open("w") as file:
        for number in range(COUNT):
            line: dict[str, object] = {"id": f"s{number}", "text_tokens": text[number]}
            if merge:
                own = [next(sides) ** 2 for _ in range(images[number])]
                line["images"] = [{"patches": merge * tokens, "tokens": tokens} for tokens in own]
            file.write(json.dumps(line) + "\n")
    return path


for model, cluster, parallel, merge in (
    ("vlm-s", "h800:4x8", "dp4-tp2-pp4", 16),
    ("qwen2.5-vl-7b", "h100:4x8", "dp4-tp2-pp4", 4),
    ("llama3-8b", "h100:4x8", "dp4-tp2-pp4", 0),
):
    job = semu.load_run(model, ["training.global_batch=128"], cluster=cluster, parallel=parallel)
    study = semu.assignment_study(job, write_samples(Path(f"{model}.jsonl"), merge), ["order", "coupled", "entrain"])
    print(f"{model}\n{study}\n")
    study.save(Path("out") / model)
