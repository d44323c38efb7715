"""Old place of `read_csv`; goes when nothing imports it from here."""

from pynade.tables.delimited import read_csv as read_csv
