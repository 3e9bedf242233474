"""Markdown as a reader sees it."""


def rows_of(table: str) -> list[tuple[str, ...]]:
    """The rows of a table's cells, without the columns' names."""
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
