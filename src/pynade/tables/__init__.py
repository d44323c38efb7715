"""Tables: schemas, data sets, named data sets and files."""

from pynade.tables.dataset import Column, Dataset, RowSource, Schema
from pynade.tables.files import dataset_from_file, read_file
from pynade.tables.registry import data_directory, entries, entry, folds, load, resolve

__all__ = [
    "Column",
    "Dataset",
    "RowSource",
    "Schema",
    "data_directory",
    "dataset_from_file",
    "entries",
    "entry",
    "folds",
    "load",
    "read_file",
    "resolve",
]
