"""Days of the Gregorian calendar as [year, month, day]."""

LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def leap(year: int) -> bool:
    """Whether February has 29 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def length(year: int, month: int) -> int:
    """Days of a month. Raises ValueError for a month outside 1 to 12."""
    if not 1 <= month <= 12:
        raise ValueError("months are 1 to 12")
    return 29 if month == 2 and leap(year) else LENGTHS[month - 1]


def number(day: list[int]) -> int:
    """The day's number in its year, from 1 on."""
    return sum(length(day[0], month) for month in range(1, day[1])) + day[2]


def later(day: list[int], count: int) -> list[int]:
    """The day `count` days later (0 or more)."""
    year, month, number_in_month = day[0], day[1], day[2] + count
    while number_in_month > length(year, month):
        number_in_month -= length(year, month)
        month += 1
        if month > 12:
            year, month = year + 1, 1
    return [year, month, number_in_month]
