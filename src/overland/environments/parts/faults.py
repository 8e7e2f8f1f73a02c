"""Faults that can be planted: in which function, which text, what it becomes. Held-out ones are none of training's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`right` stands in the function once and becomes `wrong`."""

    module: str
    function: str
    right: str
    wrong: str
    split: str = "train"


# fmt: off
_TRAIN = (
    ("money", "split", "[share + 1] * rest + [share] * (parts - rest)",
     "[share] * (parts - rest) + [share + 1] * rest"),
    ("money", "split", "if parts < 1:", "if parts < 0:"),
    ("money", "taxed", "(cents * percent + 50) // 100", "cents * percent // 100"),
    ("money", "change", "range(1, amount + 1)", "range(1, amount)"),
    ("words", "slug", 'c.isascii() and c.isalnum()', 'c.isascii() and c.isalpha()'),
    ("words", "slug", 'title.lower()', 'title'),
    ("words", "initials", "word[0].upper()", "word[0]"),
    ("words", "wrapped", "len(line) + 1 + len(word) > width", "len(line) + len(word) > width"),
    ("words", "wrapped", "[*lines, line] if line else lines", "lines"),
    ("words", "shared", "first.lower().split() if", "first.split() if"),
    ("spans", "merged", "start <= found[-1][1]", "start < found[-1][1]"),
    ("spans", "merged", "max(found[-1][1], end)", "end"),
    ("spans", "covered", "in merged(spans)", "in spans"),
    ("spans", "gaps", "max(here, right)", "right"),
    ("spans", "gaps", "[here, end]", "[start, end]"),
    ("order", "sequence", "waiting.setdefault(task, set())", "waiting[task] = set()"),
    ("order", "sequence", "sorted(task for", "list(task for"),
    ("order", "earliest", "hours.get(task, 1)", "hours.get(task, 0)"),
    ("order", "earliest", "begin = max(", "begin = min("),
    ("order", "users", "fresh & set(needed)", "task in needed"),
    ("table", "rows", "if line.strip()", "if line"),
    ("table", "rows", "[cell.strip() for cell in", "[cell for cell in"),
    ("table", "totals", 'cell.lstrip("-").isdigit()', "cell.isdigit()"),
    ("table", "totals", "found.get(row[key], 0) + number", "number"),
    ("table", "top", "-found[entry], entry", "found[entry], entry"),
    ("grid", "around", "0 <= r < len(grid)", "r < len(grid)"),
    ("grid", "steps", "far[here] + 1", "far[here] + 2"),
    ("grid", "steps", ", -1)", ", 0)"),
    ("grid", "rooms", "sorted(sizes, reverse=True)", "sizes"),
    ("codec", "packed", "at = end", "at += 1"),
    ("codec", "unpacked", "count += sign", "count = sign"),
    ("codec", "unpacked", "if count:", "if not code:"),
    ("codec", "check_digit", "place % 2 == 0", "place % 2 == 1"),
    ("codec", "check_digit", "-total % 10", "total % 10"),
    ("days", "leap", "(year % 100 != 0 or year % 400 == 0)", "year % 100 != 0"),
    ("days", "length", "1 <= month <= 12", "0 <= month <= 12"),
    ("days", "number", "range(1, day[1])", "range(1, day[1] + 1)"),
    ("days", "later", "year, month = year + 1, 1", "month = 1"),
    ("releases", "parsed", '.removeprefix("v")', '.lstrip("v.")'),
    ("releases", "parsed", "numbers[-1] == 0", "numbers[-1] < 0"),
    ("releases", "newest", "max(names, key=parsed)", "max(names)"),
    ("releases", "fits", "have >= want", "have > want"),
    ("stock", "level", "if have < 0:", "if have <= 0:"),
    ("stock", "level", "found.get(thing, 0) + count", "count"),
    ("stock", "missing", "count - have.get(thing, 0) for", "count for"),
    ("stock", "busiest", "abs(count)", "count"),
)
_HELD_OUT = (
    ("money", "split", "divmod(total, parts)", "divmod(total, parts + 1)"),
    ("money", "taxed", "percent + 50", "percent + 99"),
    ("money", "change", "return best.get(amount, [])", "return best[max(best)]"),
    ("words", "slug", '"-".join(kept.split())', 'kept.replace(" ", "-")'),
    ("words", "initials", "word[0].upper()", "word[-1].upper()"),
    ("words", "wrapped", "> width:", "> width + 1:"),
    ("words", "shared", "list(dict.fromkeys(word for word in first.lower().split() if word in other))",
     "[word for word in first.lower().split() if word in other]"),
    ("spans", "merged", "if start >= end:", "if start > end:"),
    ("spans", "covered", "end - start for", "end - start + 1 for"),
    ("spans", "gaps", "if left >= end:", "if left > start:"),
    ("order", "sequence", "others.discard(ready[0])", "others.clear()"),
    ("order", "earliest", "default=0)", "default=1)"),
    ("order", "users", "fresh = {task}\n", "fresh = set(needs.get(task, []))\n"),
    ("table", "rows", "lines[1:]", "lines[2:]"),
    ("table", "totals", "else 0", "else 1"),
    ("table", "top", "[:count]", "[: count + 1]"),
    ("grid", "around", '!= "#"', '!= " "'),
    ("grid", "steps", "start[0], start[1]): 0}", "start[0], start[1]): 1}"),
    ("grid", "rooms", "sizes.append(len(fresh))", "sizes.append(len(seen))"),
    ("codec", "packed", "{end - at}{text[at]}", "{text[at]}{end - at}"),
    ("codec", "unpacked", "count += sign", "count = sign + count"),
    ("codec", "check_digit", "value > 4", "value > 5"),
    ("days", "leap", "year % 400 == 0", "year % 400 == 100"),
    ("days", "length", "if month == 2 and", "if month == 3 and"),
    ("days", "number", "+ day[2]", "+ day[2] - 1"),
    ("days", "later", "number_in_month > length", "number_in_month >= length"),
    ("releases", "parsed", "if any(number < 0", "if all(number < 0"),
    ("releases", "newest", "max(names, key=parsed)", "max(names, key=len)"),
    ("releases", "fits", 'rule.split(",")', 'rule.split(",")[:1]'),
    ("stock", "level", "if count}", "if count > 1}"),
    ("stock", "missing", "if count > have", "if count >= have"),
    ("stock", "busiest", "(-moved[thing], thing)", "(-moved[thing], -len(thing))"),
)
# fmt: on

FAULTS = (*(Fault(*fault) for fault in _TRAIN), *(Fault(*fault, split="held_out") for fault in _HELD_OUT))
