"""Amounts in whole cents."""


def split(total: int, parts: int) -> list[int]:
    """`total` in `parts` shares that differ by at most one cent, the larger ones first.

    Raises ValueError where parts is below 1.
    """
    if parts < 1:
        raise ValueError("parts must be at least 1")
    share, rest = divmod(total, parts)
    return [share + 1] * rest + [share] * (parts - rest)


def taxed(cents: int, percent: int) -> int:
    """`cents` (0 or more) with `percent` added, rounded half up to a whole cent."""
    return cents + (cents * percent + 50) // 100


def change(amount: int, coins: list[int]) -> list[int]:
    """The fewest coins that make up `amount`, largest first; an empty list where none do.

    Every coin may be used any number of times. Of equally short ways, the one with the largest coins first.
    """
    best: dict[int, list[int]] = {0: []}
    for target in range(1, amount + 1):
        for coin in sorted(coins, reverse=True):
            rest = best.get(target - coin)
            if rest is None:
                continue
            way = sorted([*rest, coin], reverse=True)
            if target not in best or (len(way), [-c for c in way]) < (len(best[target]), [-c for c in best[target]]):
                best[target] = way
    return best.get(amount, [])
