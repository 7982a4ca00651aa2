"""Context parallelism: how sequences are cut over the ranks of a group, and which groups a module may have.

How these ranks exchange keys and values is in ``semu.nn.rules.attention.context``, what a job must fulfil in
``semu.simulation.checks.context_parallel``.
"""

from __future__ import annotations

from enum import Enum

from semu.checks import check_integer, check_member, check_word
from semu.errors import ConfigError
from semu.nn.masked_kernel import TILE_EDGE


class Balance(Enum):
    """A policy; the value is run.toml's word."""

    ZIGZAG = "zigzag"
    DOCUMENT_ZIGZAG = "document-zigzag"
    CONTIGUOUS = "contiguous"
    STRIPED = "striped"
    LPT = "lpt"
    LPT_EQUAL = "lpt-equal"
    SNAKE = "snake"
    RANDOM = "random"
    LOCAL = "local"
    HYBRID = "hybrid"

    @property
    def is_by_work(self) -> bool:
        """Whether it looks at the work of blocks."""
        return self in (Balance.LPT, Balance.LPT_EQUAL, Balance.SNAKE, Balance.LOCAL)

    @property
    def is_by_block(self) -> bool:
        """Whether it deals blocks."""
        return self.is_by_work or self in (Balance.STRIPED, Balance.RANDOM)

    @property
    def groups_ranks(self) -> bool:
        """Whether keys travel within groups of ranks that share a stretch of text."""
        return self is Balance.HYBRID


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


def check_balance(balance: Balance | str, block: int, split: int) -> Balance:
    """The policy of context ranks.

    Raises:
        ConfigError: an unknown policy, a block that divides no tile and that no tile divides, a split below 0.
    """
    check_integer(block, "parallel.cp_block", "tokens of a block")
    check_integer(split, "parallel.attention_split", "parts of a row's keys", least=0)
    if block % TILE_EDGE and TILE_EDGE % block:
        raise ConfigError(
            f"a block of {block} tokens does not divide into tiles of {TILE_EDGE}, nor a tile into blocks",
            where="parallel.cp_block",
            expected=f"a multiple or a divisor of {TILE_EDGE}",
            got=block,
            nearest=largest_block(block),
        )
    return check_member(balance, Balance, "parallel.cp_balance", "policy of context ranks")


def largest_block(tokens: int) -> int:
    """The largest legal block of at most so many tokens, at least 1."""
    if tokens >= TILE_EDGE:
        return tokens // TILE_EDGE * TILE_EDGE
    return max(size for size in range(1, TILE_EDGE) if TILE_EDGE % size == 0 and size <= max(tokens, 1))


def group_widths(cp: int, balance: Balance) -> tuple[int, ...]:
    """Ranks of the groups within which keys travel, rising, the divisors of cp; empty: they travel among all."""
    if cp == 1 or not balance.groups_ranks:
        return ()
    return tuple(n for n in range(1, cp + 1) if cp % n == 0)


def idle_settings(cp: int, balance: Balance) -> tuple[str, ...]:
    """Settings of context ranks without bearing: all where there is one rank, else those of other policies."""
    if cp == 1:
        return "cp_kind", "cp_inner", "cp_balance", "cp_block", "cp_slack", "cp_overlap", "cp_gather_heads"
    is_near = balance in (Balance.LOCAL, Balance.HYBRID)
    return (*(() if balance.is_by_block else ("cp_block",)), *(() if is_near else ("cp_slack",)))


def check_exchange(cp: int, kind: str, balance: Balance, overlap: str, heads: str, inner: int) -> None:
    """What goes with the way in which context ranks exchange keys and values.

    Args:
        cp: ranks. kind: ``cp_kind``. balance, overlap, heads, inner: see ``Parallel``.
    Raises:
        ConfigError: a policy where every rank has all tokens; heads one by one where nothing is gathered, or in groups
            of ranks; rings between groups beside groups of other sizes.
    """
    check_word(overlap, ("none", "heads"), "overlap of gathers", "parallel.cp_overlap")
    check_word(heads, ("kv", "query"), "heads that travel", "parallel.cp_gather_heads")
    if cp > 1 and kind == "all_to_all" and balance is not Balance.ZIGZAG:
        raise ConfigError(
            "a policy of context ranks, where every rank attends to all tokens with some of the heads",
            where="parallel.cp_balance",
            expected='"zigzag", or cp_kind = "ring" or "all_gather"',
            got=balance.value,
            nearest=Balance.ZIGZAG.value,
        )
    if overlap == "heads" and kind != "all_gather" and cp > 1:
        raise ConfigError(
            "heads that travel one by one, where keys and values are not gathered",
            where="parallel.cp_overlap",
            expected='"none", or cp_kind = "all_gather"',
            got=overlap,
            nearest="none",
        )
    if heads == "query" and overlap != "heads":
        raise ConfigError(
            "heads of queries travel one by one",
            where="parallel.cp_gather_heads",
            expected='"kv", or cp_overlap = "heads"',
            got=heads,
            nearest="kv",
        )
    if cp > 1 and balance.groups_ranks and (overlap == "heads" or inner > 1):
        name, got, other = ("cp_inner", inner, "1") if inner > 1 else ("cp_overlap", overlap, '"none"')
        raise ConfigError(
            f"groups of ranks that share a stretch of text, beside {name} = {got}, are not modelled by this version",
            where="parallel.cp_balance",
            expected=f"another policy, or {name} = {other}",
            got=balance.value,
            nearest=Balance.ZIGZAG.value,
        )
