"""Settings of the documentation: `make docs` builds it into docs/_build/html, without a network."""

import os
import sys
from pathlib import Path

from pynade import __version__ as release

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))  # `commands`: the reference of the command line
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # `pynade` in notebooks
os.environ.setdefault("OMP_NUM_THREADS", "1")


project, author, language = "pynade", "The pynade developers", "en"
project_copyright = "The pynade developers, MIT licence"
version = release

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb", "sphinx_copybutton", "commands"]
exclude_patterns = ["_build", "_ext"]
nitpicky = True  # with -W: a link that leads nowhere ends the build
default_role = "py:obj"  # `name` in a docstring is a link where there is such an object, else plain code
nitpick_ignore_regex = [("py:(obj|class|data|exc)", ".*")]  # types of other libraries have no page here

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # a page is run again when its code has changed
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_default_options = {  # methods of scikit-learn that say nothing about a density
    "show-inheritance": True,
    "exclude-members": "get_metadata_routing, set_fit_request, set_predict_request, set_score_request, "
    "set_predict_proba_request, set_transform_request, set_output",
}
suppress_warnings = ["myst.header"]  # pages that programs write begin with headings of the third level
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"pynade {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"
