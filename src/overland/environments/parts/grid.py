"""Maps of text: "#" is a wall, everything else is free."""


def around(grid: list[str], row: int, column: int) -> list[list[int]]:
    """Free places above, left, right and below of one, in this order."""
    found = []
    for r, c in ((row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)):
        if 0 <= r < len(grid) and 0 <= c < len(grid[r]) and grid[r][c] != "#":
            found.append([r, c])
    return found


def steps(grid: list[str], start: list[int], end: list[int]) -> int:
    """The fewest steps from one place to another; -1 where there is no way."""
    far = {(start[0], start[1]): 0}
    fresh = [(start[0], start[1])]
    for here in fresh:
        for r, c in around(grid, *here):
            if (r, c) not in far:
                far[r, c] = far[here] + 1
                fresh.append((r, c))
    return far.get((end[0], end[1]), -1)


def rooms(grid: list[str]) -> list[int]:
    """The sizes of the connected free areas, largest first."""
    seen: set[tuple[int, int]] = set()
    sizes = []
    for row, line in enumerate(grid):
        for column, sign in enumerate(line):
            if sign == "#" or (row, column) in seen:
                continue
            fresh = [(row, column)]
            seen.add((row, column))
            for here in fresh:
                for r, c in around(grid, *here):
                    if (r, c) not in seen:
                        seen.add((r, c))
                        fresh.append((r, c))
            sizes.append(len(fresh))
    return sorted(sizes, reverse=True)
