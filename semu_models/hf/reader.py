"""``Reader``: reads a configuration and those inside it by their dialects' tables; what no table knows is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from semu.errors import ConfigError, nearest_name
from semu_models.hf.common import FIXED, IGNORED, NATIVE_QUANTISATION, UNDERSTOOD
from semu_models.hf.dialect import Dialect, Section, Spelling
from semu_models.hf.document import Document
from semu_models.hf.entries import QUANTISATION, Entry, Table, architecture, is_zero, known_keys, look_up, outer_key
from semu_models.hf.reading import ReadingRow
from semu_models.hf.values import Part, Values

_OFF: tuple[Any, ...] = (None, False, "", [], {})
"""Values that mean an unknown key is not set; such a key is left out. 0 is a value."""

MOST_LAYERS = 10_000
"""A larger number is taken for a slip: its module tree would take minutes to build."""

_LAYERS = ("layers", "decoder_layers")


class Reader:
    """Reads one document.

    Args:
        document: the file. find: dialect of a name, for nested configurations.
        ignore: keys that the user wants left out. vocab_step: tables are padded to a multiple of this many rows.
    Attributes:
        understood, defaulted, ignored, notes: the report so far.
    """

    def __init__(
        self,
        document: Document,
        find: Callable[[str, str], Dialect],
        ignore: Sequence[str] = (),
        vocab_step: int = 1,
    ) -> None:
        self.document, self.find = document, find
        self.ignore, self.vocab_step = tuple(ignore), vocab_step
        self.understood: list[ReadingRow] = []
        self.defaulted: list[ReadingRow] = []
        self.ignored: list[ReadingRow] = []
        self.notes: list[str] = []
        self._left_out: set[str] = set()

    def read(self, dialect: Dialect, model_type: str) -> Part:
        """The whole document.

        Raises:
            ConfigError: an unknown key that is set, a wrong type, a contradiction, sizes that do not fit together.
        """
        table = {key: Entry(key, value) for key, value in self.document.fields.items()}
        part = self._part(dialect, model_type, table)
        for key in self.ignore:
            if key not in self._left_out:
                read = [row.key for row in (*self.understood, *self.ignored)]
                raise ConfigError(
                    f"{key!r} cannot be left out: "
                    + ("it is a size of the model" if key in read else "the file does not have it"),
                    where="model.hf_ignore",
                    expected="keys of the file that semu does not know",
                    got=key,
                )
        return part

    # -- one section -------------------------------------------------------------------------------------------
    def _part(self, dialect: Dialect, model_type: str, table: Table) -> Part:
        fields: dict[str, Any] = {}
        keys: dict[str, str] = {}
        used: set[str] = set()
        for name, spelling in dialect.spellings.items():
            key, value = self._field(dialect, name, spelling, table, used)
            fields[name], keys[name] = value, key
        rest = {key: entry for key, entry in table.items() if key not in used}
        sections = self._sections(dialect, rest)
        self._plain_keys(dialect, model_type, rest, used)
        values = Values(model_type, self.document, fields, keys, sections, architecture(table))
        self._check_architecture(dialect, values, table)
        self._pad_vocabulary(values)
        with self.located(values):
            config = dialect.config(values)
        for key, value, how in values.derived:
            self.defaulted.append(ReadingRow(key, value, how))
        self.notes += values.notes
        return Part(model_type, values, config)

    def _field(self, dialect: Dialect, name: str, spelling: Spelling, table: Table, used: set[str]) -> tuple[str, Any]:
        """(dotted key, value) of a canonical field; rows of the report."""
        present = [(path, entry) for path in spelling.keys if (entry := look_up(table, path)) is not None]
        used.update(path for path, _ in present)
        given = [(path, entry) for path, entry in present if entry.value is not None]
        for _, entry in given:
            if not spelling.kind.accepts(entry.value):
                raise ConfigError(
                    f"not {spelling.kind.value}",
                    where=self.document.place(entry.key),
                    expected=spelling.kind.value,
                    got=repr(entry.value),
                )
            if name in _LAYERS and entry.value > MOST_LAYERS:
                raise ConfigError(
                    "more layers than any model has",
                    where=self.document.place(entry.key),
                    expected=f"at most {MOST_LAYERS}",
                    got=entry.value,
                    nearest=MOST_LAYERS,
                )
        if len({repr(entry.value) for _, entry in given}) > 1:
            (_, one), (_, two) = given[:2]
            raise ConfigError(
                f"two spellings of one size contradict: {one.key} = {one.value}, {two.key} = {two.value}",
                where=self.document.place(two.key),
                expected=f"{two.key} = {one.value}, or one of the two keys",
                got=two.value,
                nearest=one.value,
            )
        if given:
            for _, entry in given:
                self.understood.append(ReadingRow(entry.key, entry.value, name))
            return given[0][1].key, given[0][1].value
        if present and spelling.nullable:
            entry = present[0][1]
            self.understood.append(ReadingRow(entry.key, None, f"{name}: none"))
            return entry.key, None
        key = outer_key(table, spelling.keys[0]) if not present else present[0][1].key
        if spelling.default is not None:
            self.defaulted.append(ReadingRow(key, spelling.default, f"{name}; default of {dialect.source}"))
        return key, spelling.default

    def _sections(self, dialect: Dialect, rest: dict[str, Entry]) -> dict[str, Part]:
        """The nested configurations; their keys leave ``rest``."""
        result = {}
        for name, section in dialect.sections.items():
            key = next((key for key in section.keys if key in rest), None)
            entry = rest.pop(key) if key is not None else None
            if entry is not None and entry.value is not None and not isinstance(entry.value, Mapping):
                raise ConfigError(
                    "not an object",
                    where=self.document.place(entry.key),
                    expected="a configuration",
                    got=repr(entry.value),
                )
            inner = {} if entry is None or entry.value is None else dict(entry.value)
            if not inner and section.optional and not section.flat:
                continue
            prefix = entry.key if entry is not None else section.keys[0]
            table = {k: Entry(f"{prefix}.{k}", value) for k, value in inner.items()}
            written = inner.get("model_type") or section.dialect
            inner_dialect = self._section_dialect(section, written, prefix)
            if section.flat:
                self._add_flat(dialect, inner_dialect, table, rest)
            model_type = inner_dialect.model_types[0] if written is None else str(written)
            result[name] = self._part(inner_dialect, model_type, table)
        return result

    def _section_dialect(self, section: Section, written: Any, prefix: str) -> Dialect:
        if not isinstance(written, str):
            raise ConfigError(
                "no model_type", where=self.document.place(prefix), expected="model_type of the section", got=written
            )
        return self.find(section.renames.get(written, written), self.document.place(f"{prefix}.model_type"))

    def _add_flat(self, outer: Dialect, inner: Dialect, table: dict[str, Entry], rest: dict[str, Entry]) -> None:
        """Move keys of the nested configuration that stand at the top level into it."""
        outer_keys = known_keys(outer)
        inner_keys = {path.partition(".")[0] for spelling in inner.spellings.values() for path in spelling.keys}
        inner_keys |= {*inner.understood, *inner.ignored, *inner.fixed}
        for key in [key for key in rest if key in inner_keys and key not in outer_keys]:
            entry = rest.pop(key)
            if key not in table:
                table[key] = entry
            elif table[key].value != entry.value:
                raise ConfigError(
                    f"{entry.key} = {entry.value} contradicts {table[key].key} = {table[key].value}",
                    where=self.document.place(entry.key),
                    expected="the same value at both places",
                    got=entry.value,
                    nearest=table[key].value,
                )
            else:
                self.ignored.append(ReadingRow(entry.key, entry.value, f"repeats {table[key].key}"))

    # -- keys without a canonical field --------------------------------------------------------------------------
    def _plain_keys(self, dialect: Dialect, model_type: str, rest: Mapping[str, Entry], used: set[str]) -> None:
        understood = {**UNDERSTOOD, **dialect.understood}
        ignored = {**IGNORED, **dialect.ignored}
        fixed = {**FIXED, **dialect.fixed}
        unknown: list[Entry] = []
        for key, entry in rest.items():
            inner = [path for path in used if path.startswith(f"{key}.")]
            if entry.key in self.ignore or key in self.ignore:
                self._left_out.update({entry.key, key})
                self.ignored.append(ReadingRow(entry.key, entry.value, "asked for (hf_ignore)"))
            elif key in QUANTISATION:
                self._quantisation(entry)
            elif inner and isinstance(entry.value, Mapping):
                read = {path[len(key) + 1 :] for path in inner}
                unknown += [
                    Entry(f"{entry.key}.{k}", v)
                    for k, v in entry.value.items()
                    if k not in read and key not in understood
                ]
            elif key in fixed:
                self._check_fixed(entry, fixed[key].legal, fixed[key].why, model_type)
            elif key in understood:
                self.understood.append(ReadingRow(entry.key, entry.value, understood[key]))
            elif key in ignored:
                self.ignored.append(ReadingRow(entry.key, entry.value, ignored[key]))
            else:
                unknown.append(entry)
        refused = [entry for entry in unknown if entry.value not in _OFF or is_zero(entry.value)]
        for entry in unknown:
            if entry not in refused:
                self.ignored.append(ReadingRow(entry.key, entry.value, "unknown, and not set"))
        if refused:
            raise self._unknown(dialect, model_type, refused)

    def _unknown(self, dialect: Dialect, model_type: str, refused: Sequence[Entry]) -> ConfigError:
        entry = refused[0]
        legal = sorted(known_keys(dialect))
        nearest = nearest_name(entry.key.rpartition(".")[2], legal)
        keys = ", ".join(f'"{item.key}"' for item in refused)
        others = f" (and {', '.join(item.key for item in refused[1:])})" if len(refused) > 1 else ""
        return ConfigError(
            f"unknown key {entry.key!r}{others}, which may change the arithmetic of {model_type}"
            + (f", did you mean {nearest!r}?" if nearest is not None else ""),
            where=self.document.place(entry.key),
            expected=f"a key that semu reads for {model_type}; where it changes no sizes: "
            f"[model] hf_ignore = [{keys}], or --set 'model.hf_ignore=[{keys}]'",
            got=f"{entry.key} = {entry.value!r}",
            nearest=nearest,
        )

    def _check_fixed(self, entry: Entry, legal: tuple[Any, ...], why: str, model_type: str) -> None:
        if not any(entry.value == item and isinstance(entry.value, bool) == isinstance(item, bool) for item in legal):
            raise ConfigError(
                f"{entry.key} = {entry.value!r} is not modelled for {model_type}: {why}",
                where=self.document.place(entry.key),
                expected=" or ".join(dict.fromkeys("null" if item is None else repr(item) for item in legal)),
                got=repr(entry.value),
                nearest=repr(legal[0]),
            )
        self.understood.append(ReadingRow(entry.key, entry.value, "the only value that is modelled"))

    def _quantisation(self, entry: Entry) -> None:
        table = entry.value if isinstance(entry.value, Mapping) else {}
        if not entry.value:
            self.ignored.append(ReadingRow(entry.key, entry.value, "not quantised"))
            return
        method = str(table.get("quant_method", "no quant_method"))
        if method not in NATIVE_QUANTISATION:
            raise ConfigError(
                f"this is a quantised checkpoint ({method}): its weights are not what is trained",
                where=self.document.place(entry.key),
                expected="the config.json of the model that was quantised; or, to train the same sizes unquantised, "
                f'[model] hf_ignore = ["{entry.key}"]',
                got=method,
            )
        self.understood.append(ReadingRow(entry.key, method, NATIVE_QUANTISATION[method]))
        self.notes.append(
            f"{entry.key}: a quantised checkpoint, {NATIVE_QUANTISATION[method]}; the sizes are those of the model, "
            "and training.precision (with training.fp8_recipe) says in which precision it trains"
        )

    def _check_architecture(self, dialect: Dialect, values: Values, table: Table) -> None:
        written, legal = values.architecture, dialect.architectures
        if written is None or not legal or written in legal:
            return
        if "architectures" in self.ignore:
            self._left_out.add("architectures")
            return
        raise ConfigError(
            f"{written} is not modelled for {values.model_type}: it has other inputs or another head",
            where=self.document.place(table["architectures"].key),
            expected=" or ".join(legal) + '; or [model] hf_ignore = ["architectures"], which takes ' + legal[0],
            got=written,
            nearest=nearest_name(written, legal),
        )

    def _pad_vocabulary(self, values: Values) -> None:
        rows = values.get("vocab")
        if self.vocab_step == 1 or not isinstance(rows, int):
            return
        padded = -(-rows // self.vocab_step) * self.vocab_step
        values.fields = {**values.fields, "vocab": padded}
        if padded != rows:
            self.notes.append(
                f"{values.keys['vocab']}: {rows} -> {padded} rows, a multiple of {self.vocab_step} "
                "(model.vocab_multiple x tp)"
            )

    @contextmanager
    def located(self, values: Values) -> Iterator[None]:
        """A block whose errors name a key of the file."""
        try:
            yield
        except ConfigError as error:
            if error.where is None or self.document.name not in error.where:
                field = (error.where or "").rpartition(".")[2]
                error.where = values.place(field) if field in values.keys else self.document.name
            raise
