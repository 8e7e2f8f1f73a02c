"""Version numbers such as "1.10.2"; a missing part counts as 0."""


def parsed(text: str) -> list[int]:
    """The parts as numbers without trailing zeros; a leading "v" is allowed. Raises ValueError for anything else."""
    numbers = [int(part) for part in text.removeprefix("v").split(".")]
    if any(number < 0 for number in numbers):
        raise ValueError("a part is negative")
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def newest(names: list[str]) -> str:
    """The highest version, as it was written; the first of equal ones. Raises ValueError for an empty list."""
    return max(names, key=parsed)


def fits(version: str, rule: str) -> bool:
    """Whether a version satisfies "==1.2", ">=1.2", "<2" or all of several with commas between."""
    for part in rule.split(","):
        part = part.strip()
        sign = "==" if part.startswith("==") else ">=" if part.startswith(">=") else "<"
        have, want = parsed(version), parsed(part[len(sign) :].strip())
        if not {"==": have == want, ">=": have >= want, "<": have < want}[sign]:
            return False
    return True
