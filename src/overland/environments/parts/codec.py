"""Short codes for text and numbers."""


def packed(text: str) -> str:
    """Runs as count and letter, "aaab" as "3a1b". The text has no digits."""
    found = ""
    at = 0
    while at < len(text):
        end = at
        while end < len(text) and text[end] == text[at]:
            end += 1
        found += f"{end - at}{text[at]}"
        at = end
    return found


def unpacked(code: str) -> str:
    """The text that `packed` made a code of. Raises ValueError for what is no such code."""
    found, count = "", ""
    for sign in code:
        if sign.isdigit():
            count += sign
        elif not count:
            raise ValueError("a letter without a count")
        else:
            found += sign * int(count)
            count = ""
    if count:
        raise ValueError("a count without a letter")
    return found


def check_digit(digits: str) -> int:
    """The digit to append so that the whole has a Luhn sum divisible by 10."""
    total = 0
    for place, sign in enumerate(reversed(digits)):
        value = int(sign)
        if place % 2 == 0:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return -total % 10
