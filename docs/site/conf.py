"""The documentation as a site: `make docs` writes it to docs/_build.

The source folder is the top of the repository, so that a link works alike in a checkout and on the site.
The documents are plain Markdown; only this file knows that there is a site. Warnings are errors: a link to
a file, a document or a heading that does not exist ends the build.
"""

from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
GUIDE = (
    "run configure trees budgets check-answers approvals tools write-a-tool python-agents python "
    "add-a-provider clients a2a events operate on-call several-machines kubernetes troubleshoot"
)

project = "mesh"
author = "The mesh contributors"
root_doc = "README"
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/*.md", "docs/decisions/*.md", "examples/*.md", "examples/*/README.md"]
exclude_patterns = [".*", "data", "docs/_build"]  # not even looked into
myst_heading_anchors = 3  # as GitHub makes them
html_theme = "sphinx_book_theme"
html_title = "mesh"
html_copy_source = False
html_show_sourcelink = False
html_extra_path = ["index.html"]
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search is in the sidebar already
    "show_toc_level": 2,
    "use_download_button": False,
}


def contents() -> dict[str, list[str]]:
    """The documents in the order in which they are listed, by section."""
    guide = [f"docs/{name}" for name in GUIDE.split()]
    project = ["CONTRIBUTING", "SECURITY", "CHANGELOG", *_found("docs/*.md", but=guide)]
    decisions = _found("docs/decisions/*.md")
    return {"Guide": [*guide, "examples/README"], "Project": project, "Decisions": decisions}


def _found(pattern: str, but: list[str] | None = None) -> list[str]:
    names = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob(pattern))
    return [name for name in names if name not in (but or [])]


def _add_contents(_: Sphinx, name: str, source: list[str]) -> None:
    """Adds to two documents what a reader of a checkout gets from the list of files."""
    if name == root_doc:
        source[0] += "".join(_toctree(names, caption) for caption, names in contents().items() if names)
    elif name == "examples/README":
        source[0] += _toctree([found.removeprefix("examples/") for found in _found("examples/*/README.md")])


def _toctree(names: list[str], caption: str = "") -> str:
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n\n```{{toctree}}\n{options}\n" + "\n".join(names) + "\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_contents)
