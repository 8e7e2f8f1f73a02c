"""Tasks that wait for one another: a task maps to the tasks it needs."""


def sequence(needs: dict[str, list[str]]) -> list[str]:
    """All tasks, each after those it needs; of those that are ready, the first in the alphabet comes first.

    Tasks that are only named as needed count too. Raises ValueError where tasks wait for one another in a circle.
    """
    waiting = {task: set(needed) for task, needed in needs.items()}
    for needed in needs.values():
        for task in needed:
            waiting.setdefault(task, set())
    done: list[str] = []
    while waiting:
        ready = sorted(task for task, needed in waiting.items() if not needed)
        if not ready:
            raise ValueError("the tasks wait for one another in a circle")
        done.append(ready[0])
        del waiting[ready[0]]
        for others in waiting.values():
            others.discard(ready[0])
    return done


def earliest(needs: dict[str, list[str]], hours: dict[str, int]) -> dict[str, int]:
    """When each task can be finished if all begin as soon as they can; a task without hours takes 1."""
    ends: dict[str, int] = {}
    for task in sequence(needs):
        begin = max((ends[needed] for needed in needs.get(task, [])), default=0)
        ends[task] = begin + hours.get(task, 1)
    return ends


def users(needs: dict[str, list[str]], task: str) -> list[str]:
    """Every task that needs `task`, directly or through others, sorted."""
    found: set[str] = set()
    fresh = {task}
    while fresh:
        fresh = {other for other, needed in needs.items() if fresh & set(needed)} - found
        found |= fresh
    return sorted(found)
