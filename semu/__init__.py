"""semu: how long a training step takes, what it costs in memory, and how to make it shorter; before renting a GPU.

    import semu, semu_models

    job = semu.TrainingJob(
        model=semu_models.vlm_m(),
        cluster=semu.Cluster("h800", nodes=8, gpus_per_node=8),
        parallel=semu.Parallel(dp=8, tp=2, pp=4),
        training=semu.Training(micro_batch=1, global_batch=128, recompute="full"),
        batch=semu.workload.vlm_batch(seed=0),
    )
    print(semu.simulate(job))

Names are imported on first use, so that ``import semu`` costs nothing that is not needed; they are declared once, with
their modules, in ``__init__.pyi``.
"""

__version__ = "0.1.0"

_homes: dict[str, str] = {}  # name -> module that has it; empty until the stub was read


def _read_stub() -> None:
    """Fill ``_homes`` and ``__all__`` from the stub's ``from MODULE import NAME as NAME`` and ``__all__ = [...]``."""
    import ast

    homes: dict[str, str] = {}
    for node in ast.parse(__spec__.loader.get_data(f"{__path__[0]}/__init__.pyi")).body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.Assign):
            globals()["__all__"] = ast.literal_eval(node.value)
    _homes.update(homes)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if not _homes:
        _read_stub()
    if name == "__all__":
        return globals()[name]
    if name not in _homes:
        raise AttributeError(f"module 'semu' has no attribute {name!r}")
    home = _homes[name]
    value = import_module(f"semu.{name}") if home == "semu" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
