"""Text, word by word."""


def slug(title: str) -> str:
    """Lower case; runs of anything but ASCII letters and digits become one hyphen, none at either end."""
    kept = "".join(c if c.isascii() and c.isalnum() else " " for c in title.lower())
    return "-".join(kept.split())


def initials(name: str) -> str:
    """The first letters of the words, upper case, each with a full stop: "ada m lovelace" gives "A.M.L."."""
    return "".join(f"{word[0].upper()}." for word in name.split())


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, words kept whole; a longer word has a line of its own."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def shared(first: str, second: str) -> list[str]:
    """Words that are in both texts, whatever their case, in the order of the first text, each once, lower case."""
    other = set(second.lower().split())
    return list(dict.fromkeys(word for word in first.lower().split() if word in other))
