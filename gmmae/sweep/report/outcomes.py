"""Lists in words."""

from collections.abc import Iterable, Sequence


def listed(items: Iterable[object]) -> str:
    """Returns the items with commas, and with "and" before the last.

    >>> listed([1]), listed([1, 2, 4])
    ('1', '1, 2 and 4')
    """
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def devices_text(counts: Sequence[int]) -> str:
    """Returns a list of numbers of devices as text.

    >>> devices_text([1]), devices_text([1, 2])
    ('1 device', '1 and 2 devices')
    """
    return "1 device" if list(counts) == [1] else f"{listed(counts)} devices"
