"""Context parallelism: how sequences are cut over the ranks of a group, and which groups a module may have.

How these ranks exchange keys and values is in ``semu.nn.rules.attention.context``, what a job must fulfil in
``semu.simulation.checks.context_parallel``.
"""

from __future__ import annotations

from semu.errors import ConfigError


def sequence_parts(cp: int) -> int:
    """Chunks into which context parallelism cuts every sequence: 1, or 2 x cp, of which rank r holds number r and
    number 2 cp - 1 - r, so that all ranks do equally much under a causal mask (Megatron-LM; 2407.21783 §3.3.2)."""
    return 2 * cp if cp > 1 else 1


def module_ranks(cp: int | None, job_cp: int, where: str) -> int:
    """Context-parallel ranks of one modality module.

    Args:
        cp: of the module; None: as the job. job_cp: of the job. where: the module's table, for messages.
    Raises:
        ConfigError: neither 1 nor the job's.
    """
    if cp is None:
        return job_cp
    if cp not in (1, job_cp):
        raise ConfigError(
            f"cp = {cp} for one module beside cp = {job_cp} is not modelled by this version",
            where=f"{where}.cp",
            expected=" or ".join(map(str, sorted({1, job_cp}))),
            got=cp,
            nearest=min((1, job_cp), key=lambda size: (abs(size - cp), size)),
        )
    return cp
