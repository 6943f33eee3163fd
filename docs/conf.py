"""How the documentation is built: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

import latex2mathml.converter  # noqa: E402
from docutils import nodes  # noqa: E402

import lem  # noqa: E402

project = "long-expressive-memory"
author = "The long-expressive-memory developers"
copyright = author
version = release = lem.__version__
SPHINX = ("autodoc", "autosummary", "napoleon", "viewcode")
extensions = ["myst_parser", *(f"sphinx.ext.{name}" for name in SPHINX)]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "misprints-evidence.md"]
html_theme = "furo"
default_role = "py:obj"  # names in single backquotes are code, and links where the object has a page
highlight_language = "none"  # blocks without a name are commands
html_title = "long-expressive-memory"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_use_ivar = True
suppress_warnings = ["myst.header", "ref.python"]
html_static_path = ["_static"]
html_css_files = ["lem.css"]
html_math_renderer = "mathml"


def setup(app):
    """Render mathematics as MathML, which browsers show without a script from elsewhere; let |x| mean a modulus."""

    def inline(self, node):
        self.body.append(latex2mathml.converter.convert(node.astext()))
        raise nodes.SkipNode

    def block(self, node):
        self.body.append(latex2mathml.converter.convert(node.astext(), display="block"))
        raise nodes.SkipNode

    def keep_bars(app, what, name, obj, options, lines):
        lines[:] = [line.replace("|", "\\|") for line in lines]

    app.connect("autodoc-process-docstring", keep_bars, priority=900)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
