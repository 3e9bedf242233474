"""A directive that puts a generated table into a page: `docs/generate.py` makes it from the code when the site is built."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs import generate


class Generated(SphinxDirective):
    """Shows the Markdown of a function of `docs.generate`, whose name is the argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns the parsed Markdown."""
        self.env.note_dependency(generate.__file__)
        return self.parse_text_to_nodes(generate.PARTS[self.arguments[0]](), allow_section_headings=True)


def mark_options(app: Sphinx, doctree: nodes.document) -> None:
    """Gives the tables of keys and options a class, by which the style finds their column of meanings."""
    if app.env.docname.endswith(("reference/configuration", "reference/commands")):
        for table in doctree.findall(nodes.table):
            table["classes"].append("options")


def is_field(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Returns True for a field of a NamedTuple, which the docstring of its class describes."""
    return True if (member.__doc__ or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive. Pages with it are read in each build, because the code may have changed."""
    app.add_directive("generated", Generated)
    app.connect("env-get-outdated", lambda app, env, *_: [n for n in env.found_docs if "reference/" in n or n == "docs/api"])
    app.connect("doctree-read", mark_options)
    app.connect("autodoc-skip-member", is_field)
    return {"parallel_read_safe": True}
