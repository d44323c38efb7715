"""Tables: schemas, data sets, named data sets and files."""

from pynade.tables.column import Column
from pynade.tables.dataset import Dataset, RowSource
from pynade.tables.files import dataset_from_file, read_file
from pynade.tables.registry import data_directory, entries, entry, folds, load, resolve
from pynade.tables.schema import Schema
from pynade.tables.stream import is_table

__all__ = ["Column", "Dataset", "RowSource", "Schema", "data_directory", "dataset_from_file"]
__all__ += ["entries", "entry", "folds", "is_table", "load", "read_file", "resolve"]
