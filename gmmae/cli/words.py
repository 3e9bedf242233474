"""Words of a command line: options and values, switches, and errors in one line."""

import itertools
from collections.abc import Sequence

from gmmae.config.schema import leaves
from gmmae.system.annotations import words_of


def option_of(key: str) -> str:
    """Returns a key's option on the command line.

    >>> option_of("stop.max_epochs")
    '--stop.max-epochs'
    """
    return "--" + key.replace("_", "-")


def _split(arguments: Sequence[str]) -> list[str]:
    """Returns the words of the arguments, where an option and its value after `=` are two."""
    return [word for argument in arguments for word in (argument.split("=", 1) if argument.startswith("--") else [argument])]


def as_words(key: str, value: object) -> list[str]:
    """Returns a key and its value as words of a command line. A boolean is a switch, one word.

    >>> as_words("data.shape", (16, 24)), as_words("data.allow_seen", True), as_words("data.allow_seen", False)
    (['--data.shape', '16', '24'], ['--data.allow-seen'], ['--data.no-allow-seen'])
    """
    section, point, name = option_of(key).removeprefix("--").rpartition(".")
    if isinstance(value, bool):
        return [f"--{section}{point}{'' if value else 'no-'}{name}"]
    values = value if isinstance(value, list | tuple) else ["none" if value is None else value]
    return [option_of(key), *map(str, values)]


TRUTH_VALUES = ("true", "false", "yes", "no", "on", "off", "1", "0", "none")


def switch_with_a_value(default: object, arguments: Sequence[str]) -> str:
    """Returns the correction of the first switch that has a value such as `True`, or an empty text."""
    switches = {key for key, item, _ in leaves(default) if words_of(item.type) == words_of(bool)}
    for option, value in itertools.pairwise(_split(arguments)):
        key = option.removeprefix("--").replace("-", "_")
        if option.startswith("--") and key in switches and value.lower() in TRUTH_VALUES:
            [on], [off] = as_words(key, True), as_words(key, False)
            return f"{option} is a switch without a value: write {on} or {off}; got {value!r}"
    return ""


def bad_value(default: object, arguments: Sequence[str], message: str) -> str:
    """Returns the types that an option allows where tyro cannot read its value, or an empty text for another message."""
    words = _split(arguments)
    for key, item, _ in leaves(default):
        option = option_of(key)
        if message.startswith(f"error parsing {option}: ") and option in words:
            values = itertools.takewhile(lambda word: not word.startswith("--"), words[words.index(option) + 1 :])
            return f"{option} must be {words_of(item.type)}; got {' '.join(values)!r}"
    return ""


def one_line(framed: str) -> str:
    """Returns the first paragraph of a framed message of tyro, with its suggestion.

    If standard error cannot show a frame, the rules are hyphens and the sides are missing.
    """
    lines = [line.strip("│ ") for line in framed.splitlines()]
    title, *rest = [line if line.strip("─╭╮╰╯-") else "" for line in lines]
    body = list(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, rest))) or [title]
    text = " ".join(body).rstrip(".")
    if "Perhaps you meant:" in rest:
        suggestions = rest[rest.index("Perhaps you meant:") + 1]
        options = [word.rstrip(",") for word in suggestions.split() if word.startswith("--")]  # a switch has two
        text += f"; did you mean {' or '.join(options)}?"
    return text[:1].lower() + text[1:]
