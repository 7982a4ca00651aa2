# The names of ``semu_models.hf``, each beside the module that has it.

from semu_models.hf.dialect import Dialect as Dialect
from semu_models.hf.dialect import FieldKind as FieldKind
from semu_models.hf.dialect import Fixed as Fixed
from semu_models.hf.dialect import Section as Section
from semu_models.hf.dialect import Spelling as Spelling
from semu_models.hf.document import Document as Document
from semu_models.hf.document import read_document as read_document
from semu_models.hf.load import HfModel as HfModel
from semu_models.hf.load import load_hf as load_hf
from semu_models.hf.reading import Reading as Reading
from semu_models.hf.reading import ReadingRow as ReadingRow
from semu_models.hf.registry import DIALECTS as DIALECTS
from semu_models.hf.registry import find_dialect as find_dialect
from semu_models.hf.values import Part as Part
from semu_models.hf.values import Values as Values

__all__ = [
    "DIALECTS",
    "Dialect",
    "Document",
    "FieldKind",
    "Fixed",
    "HfModel",
    "Part",
    "Reading",
    "ReadingRow",
    "Section",
    "Spelling",
    "Values",
    "find_dialect",
    "load_hf",
    "read_document",
]
