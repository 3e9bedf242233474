"""Checks prose: documents, docstrings, comments and help texts, by a list of words and by the length of sentences."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_WORDS = 28
"""Maximum number of words of a sentence."""

WORDS = {
    r"arriv(e|es|ed|ing)": "reaches the target",
    r"the rates?": "the learning rate (or: throughput, speed)",
    r"by lot": "at random",
    r"anew": "again",
    r"foretells?|foretold": "predicts, predicted",
    r"mend(s|ed|ing)?": "fix",
    r"(what )?may pass": "transient",
    r"given[- ]up": "stopped early",
    r"polish(es|ed|ing)?": "refine",
    r"twins?": "reference implementation",
    r"in turns": "alternately",
    r"by hand": "manually",
    r"wherever|hereafter|thereof|therein": "a plain word",
    r"as good": "the threshold, such as 98 % of the one-device Dice",
    r"dealt|deals": "assigns, shards",
    r"so many": "a number of",
    r"turns at": "crossover ratio",
    r"devices meet": "devices synchronise",
    r"blind": "dead layer",
}
"""Private or old-fashioned words, as regular expressions, and the field's words for them."""

FRAGMENT = re.compile(
    r"(Of|By|In|At|With|From|To|Than|Between|Below|Above|Under|Over|After|Before|On|Beside|Where|Which|Who|That|Whose|So|As)\b"
)
"""The beginning of a docstring that is no sentence and no noun phrase."""

END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z(*`{\"\d]|gmmae|code|k\^)|\n\s*\n|\n\s*(?=[-*] |\d+\. )|\n\s*(?=\w+(?:, \w+)*: )")
"""The place between two sentences: after a full stop, a paragraph, a list's item or an argument's description."""


class Prose(NamedTuple):
    """A piece of text of a file."""

    line: int
    text: str
    is_docstring: bool = False


def python_prose(source: str) -> Iterator[Prose]:
    """Yields the docstrings, help texts and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        for item in getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str):
                yield Prose(item.lineno, without_examples(item.value.value, item.col_offset), is_docstring=True)
        if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            yield Prose(node.value.lineno, str(node.value.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Prose(token.start[0], token.string.lstrip("# "))


def without_examples(docstring: str, indent: int) -> str:
    """Returns a docstring without its commands, its tables and its doctests, which stand at its end."""
    first, *rest = docstring.partition(">>>")[0].splitlines() or [""]
    lines = (line[indent:] for line in rest)
    return "\n".join([first, *("" if line.startswith(("    ", "python ", "|")) else line for line in lines)])


def page_prose(text: str) -> Iterator[Prose]:
    """Yields the paragraphs of a page in Markdown: no headings, tables, pictures or blocks of code."""
    paragraph: list[str] = []
    fenced = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fenced ^= line.startswith("```")
        if fenced or not line.strip() or line.startswith(("    ", "|", "#", "![", "```", "<!--")):
            if paragraph:
                yield Prose(number - len(paragraph), "\n".join(paragraph))
            paragraph = []
        else:
            paragraph.append(line)


def sentences(text: str) -> list[str]:
    """Splits a text into its sentences; a name in backticks is one word.

    >>> sentences("Returns `a b`. Raises nothing.")
    ['Returns code.', 'Raises nothing.']
    """
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
    return [" ".join(part.split()) for part in END.split(text) if part.strip()]


def complaints(prose: Prose) -> Iterator[str]:
    """Yields what a reader would stumble over, and a proposal."""
    parts = sentences(prose.text)
    for sentence in parts:
        count = len(re.findall(r"[A-Za-z][\w'’-]*", sentence))
        if count > MAX_WORDS:
            yield f"{count} words, divide them into sentences of at most {MAX_WORDS}: {sentence[:90]}"
    if prose.is_docstring and parts and FRAGMENT.match(parts[0]):
        yield f"begin with a verb ('Returns …') or a noun phrase: {parts[0][:90]}"
    plain = " ".join(parts)
    for pattern, proposal in WORDS.items():
        if match := re.search(rf"\b({pattern})\b", plain, re.IGNORECASE):
            yield f"'{match.group()}', say: {proposal}"


def check(path: Path) -> list[str]:
    """Returns the complaints about a file, each with its line."""
    text = path.read_text(encoding="utf-8")
    prose = python_prose(text) if path.suffix == ".py" else page_prose(text)
    return [f"{path.name}:{piece.line}: {complaint}" for piece in prose for complaint in complaints(piece)]
