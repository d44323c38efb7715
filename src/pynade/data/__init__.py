"""Data: schemas, data sets, the registry of named data sets, and users' own files."""

from pynade.data.catalogue import Entry, Form, Upstream
from pynade.data.dataset import Dataset
from pynade.data.download import DownloadError
from pynade.data.files import dataset_from_file, read_file
from pynade.data.folder import data_directory
from pynade.data.registry import entry, folds, load, load_entry, names
from pynade.data.resolve import resolve
from pynade.data.schema import Column, Schema
from pynade.data.source import RowSource

__all__ = [
    "Column",
    "Dataset",
    "DownloadError",
    "Entry",
    "Form",
    "RowSource",
    "Schema",
    "Upstream",
    "data_directory",
    "dataset_from_file",
    "entry",
    "folds",
    "load",
    "load_entry",
    "names",
    "read_file",
    "resolve",
]
