"""Tables as text: one row a line, cells between commas, the first line names the columns."""


def rows(text: str) -> list[dict[str, str]]:
    """Rows by column name, cells without surrounding space; blank lines are skipped, missing cells are empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    names = [name.strip() for name in lines[0].split(",")]
    found = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        cells += [""] * (len(names) - len(cells))
        found.append(dict(zip(names, cells, strict=False)))
    return found


def totals(text: str, key: str, value: str) -> dict[str, int]:
    """The sum of column `value` for every entry of column `key`; cells that are no whole number count as 0."""
    found: dict[str, int] = {}
    for row in rows(text):
        cell = row[value]
        number = int(cell) if cell.lstrip("-").isdigit() else 0
        found[row[key]] = found.get(row[key], 0) + number
    return found


def top(text: str, key: str, value: str, count: int) -> list[str]:
    """The `count` entries of column `key` with the largest totals; equal totals in the order of the alphabet."""
    found = totals(text, key, value)
    return sorted(found, key=lambda entry: (-found[entry], entry))[:count]
