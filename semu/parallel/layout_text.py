"""Megatron-LM's text of a pipeline layout, ``Et*3|(tt|)*2tL``: ``expand_stages``."""

from __future__ import annotations

from semu.errors import ConfigError, unknown_name

SYMBOLS = "EtmL"
"""Embedding, transformer layer, multi-token-prediction layer, loss (Megatron-LM, ``PipelineParallelLayout``)."""
_MOST = 1 << 16
"""So many symbols are no model any more."""


def expand_stages(text: object, where: str) -> list[str]:
    """The stages of a layout, each as its symbols, ``["Ettt", "tt", "tt", "tL"]``.

    Commas and blanks mean nothing; ``*n`` repeats the symbol or the group in parentheses before it.

    Args:
        text: the layout. where: its key, for messages.
    Raises:
        ConfigError: no text, an unknown symbol, an open parenthesis, a repetition of nothing, E or L in a wrong
            place, a stage with nothing in it; with the position in the text.
    """
    if not isinstance(text, str) or not text:
        raise ConfigError("not a layout", where=where, expected='a text like "Ettt|tttL"', got=repr(text))
    stages = _Reader(text, where).read().split("|")
    _check(stages, text, where)
    return stages


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.at = text, where, 0

    def read(self, opened: int | None = None) -> str:
        """All symbols up to the end, or of the group that opens at a position, with repetitions written out."""
        result = ""
        while self.at < len(self.text):
            symbol, place = self.text[self.at], self.at
            self.at += 1
            if symbol in ", \n\t":
                continue
            if symbol == ")":
                if opened is None:
                    raise self._error("a parenthesis that was not opened", place, "a '(' before it", symbol)
                return result
            if symbol == "*":
                raise self._error("nothing to repeat", place, "a symbol or a group before it", symbol)
            if symbol == "(":
                piece = self.read(place)
            elif symbol in SYMBOLS or symbol == "|":
                piece = symbol
            else:
                error = unknown_name("symbol", symbol, [*SYMBOLS, "|", "(", ")", "*"], where=self.where)
                nearest = next((legal for legal in SYMBOLS if legal.lower() == symbol.lower()), None)
                raise self._error(f"unknown symbol {symbol!r}", place, str(error.expected), symbol, nearest)
            times = self._repetitions()
            if len(result) + len(piece) * times > _MOST:
                raise self._error("too long", place, f"at most {_MOST} symbols", "more")
            result += piece * times
        if opened is not None:
            raise self._error("a parenthesis that is not closed", opened, "a ')' behind it", "(")
        return result

    def _repetitions(self) -> int:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
        if self.text[self.at : self.at + 1] != "*":
            return 1
        begin = self.at = self.at + 1
        while self.text[self.at : self.at + 1] in tuple("0123456789"):
            self.at += 1
        digits = self.text[begin : self.at]
        if not digits or int(digits[:7]) < 1 or len(digits) > 6:
            raise self._error("not a number of repetitions", begin, "an integer >= 1", digits or "nothing", 1)
        return int(digits)

    def _error(self, message: str, place: int, expected: str, got: str, nearest: object | None = None) -> ConfigError:
        shown = f"{message} at position {place} of {self.text!r}"
        return ConfigError(shown, where=self.where, expected=expected, got=got, nearest=nearest)


def _check(stages: list[str], text: str, where: str) -> None:
    """E comes first, L last, once each; no stage is empty."""
    flat = "".join(stages)
    if "m" in flat and "t" in flat[flat.index("m") :]:
        raise ConfigError(
            f"multi-token prediction (m) at position {text.index('m')} of {text!r}, and a layer (t) behind it",
            where=where,
            expected="m behind every t, before L",
            got="m",
        )
    for symbol, name, place in (("E", "embedding", 0), ("L", "loss", len(flat) - 1)):
        if flat.count(symbol) != 1 or flat.index(symbol) != place:
            raise ConfigError(
                f"the {name} ({symbol}) is not at the {'end' if place else 'beginning'} of {text!r}",
                where=where,
                expected=f"one {symbol}, {'last' if place else 'first'} of all",
                got=f"{flat.count(symbol)} of them",
            )
    if "" in stages:
        number = stages.index("")
        raise ConfigError(
            f"stage {number} of {text!r} is empty, which is not modelled by this version",
            where=where,
            expected="something in every stage",
            got="|".join(stages[max(number - 1, 0) : number + 2]),
        )
