"""What is imported to list data sets and cells: nothing that takes long."""

import subprocess
import sys

CODE = """
import sys
from pynade.tables import entries
from pynade_paper import cells, pages, paper_figures, reproduce

assert "adult" in entries()
assert cells.cells(cells.tables_named("all"))
assert paper_figures.read_figures()
print([name for name in ("torch", "scipy", "sklearn", "matplotlib", "h5py", "pooch") if name in sys.modules])
"""


def test_lists_need_no_heavy_library():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
