"""Half-open spans [start, end) of whole numbers."""


def merged(spans: list[list[int]]) -> list[list[int]]:
    """Spans that overlap or touch as one, sorted; empty spans are left out."""
    found: list[list[int]] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def covered(spans: list[list[int]]) -> int:
    """How many whole numbers lie in at least one span."""
    return sum(end - start for start, end in merged(spans))


def gaps(spans: list[list[int]], start: int, end: int) -> list[list[int]]:
    """What of [start, end) no span covers, sorted."""
    free: list[list[int]] = []
    here = start
    for left, right in merged(spans):
        if left >= end:
            break
        if left > here:
            free.append([here, left])
        here = max(here, right)
    if here < end:
        free.append([here, end])
    return free
