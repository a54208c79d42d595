"""How rows become a task: who is federated, public or held out, which labels each client gets, and that nothing is in two places.

Clients are divided whole, never by example (A10), and by the hash of their ids, so a client's place depends on the split seed and not on
the order of a file. The seed of the split is not the seed of the run: runs with other seeds still learn from the same clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from fedcodist import keys
from fedcodist.errors import data_error
from fedcodist.settings import Problem, SettingError, show
from fedcodist.types import Array, Key

CAPACITY = {"high": 0.1, "mid": 0.2, "low": 0.7}  # the usual picture: most devices are small


def generator(key: Key) -> np.random.Generator:
    """numpy's own draws, from a key."""
    high, low = (int(word) for word in np.asarray(key, np.uint32))
    return np.random.Generator(np.random.Philox(key=(high << 32) | low))


def shuffled(ids: Iterable[str], key: Key) -> list[str]:
    """The ids in the order of their keyed hashes: a random order in which each id has its place by itself.

    >>> order = shuffled("abcdef", keys.root(0))
    >>> [c for c in order if c != "b"] == shuffled("acdef", keys.root(0))
    True
    """
    return sorted(ids, key=lambda name: (*keys.derive(key, name).tolist(), name))


def divide(ids: Iterable[str], shares: Mapping[str, float], rest: str, key: Key) -> dict[str, list[str]]:
    """The ids in parts of these shares (at least one id each), and the rest; every part is sorted.

    >>> {part: len(names) for part, names in divide(map(str, range(100)), {"a": 0.27, "b": 0.1}, "c", keys.root(0)).items()}
    {'c': 63, 'a': 27, 'b': 10}
    """
    order = shuffled(ids, key)
    counts = {part: max(1, round(share * len(order))) for part, share in shares.items()}
    if sum(counts.values()) >= len(order):
        taken = " + ".join(f"{count} {part}" for part, count in counts.items())
        raise data_error("clients", f"{len(order)}", f"more than {taken}")
    parts: dict[str, list[str]] = {rest: []}
    for part, count in counts.items():
        parts[part], order = sorted(order[:count]), order[count:]
    parts[rest] = sorted(order)
    return parts


def check_shares(part: object, *fields: str) -> None:
    """SettingError if these shares of a part leave nothing for the federated clients."""
    total = sum(getattr(part, field) for field in fields)
    if total >= 1:
        name = f"{type(part).__name__}.{fields[0]}"
        raise SettingError([Problem(name, show(getattr(part, fields[0])), f"{' + '.join(fields)} < 1", f"their sum is {total:g}")])


def capacities(ids: Iterable[str], key: Key) -> dict[str, str]:
    """How strong each client's device is: low, mid or high for 70, 20 and 10 % of the clients.

    >>> sorted(capacities(map(str, range(10)), keys.root(0)).values())
    ['high', 'low', 'low', 'low', 'low', 'low', 'low', 'low', 'mid', 'mid']
    """
    order = shuffled(ids, key)
    high, mid = round(CAPACITY["high"] * len(order)), round(CAPACITY["mid"] * len(order))
    return {name: "high" if i < high else "mid" if i < high + mid else "low" for i, name in enumerate(order)}


def deal(y: np.ndarray, clients: int, concentration: float, key: Key) -> list[np.ndarray]:
    """Rows for clients of equal size with skewed labels: each client's label shares are drawn from a Dirichlet, then its rows without
    replacement from what is left, with the shares renormalised over the classes that still have rows. Each client's rows are sorted.

    >>> hands = deal(np.repeat([0, 1], 10), 4, 0.5, keys.root(0))
    >>> [len(hand) for hand in hands], len(set(np.concatenate(hands)))
    ([5, 5, 5, 5], 20)
    """
    draw = generator(key)
    piles = [draw.permutation(np.flatnonzero(y == label)) for label in range(int(y.max()) + 1)]
    left = np.array([len(pile) for pile in piles])
    hands = []
    for _ in range(clients):
        shares = draw.dirichlet(np.full(len(piles), concentration))
        hand = []
        for u in draw.random(len(y) // clients):
            open_shares = np.where(left > 0, shares, 0.0)
            if open_shares.sum() <= 0:  # all that this client wants is gone
                open_shares = (left > 0).astype(float)
            edges = np.cumsum(open_shares)
            label = int(np.searchsorted(edges, u * edges[-1], side="right"))
            left[label] -= 1
            hand.append(piles[label][left[label]])
        hands.append(np.sort(np.array(hand, np.int64)))
    return hands


def owners(hands: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of several clients one after the other, and a code for whose each is.

    >>> [a.tolist() for a in owners([np.array([4, 7]), np.array([5])])]
    [[4, 7, 5], [0, 0, 1]]
    """
    hands = list(hands)
    return np.concatenate(hands), np.repeat(np.arange(len(hands)), [len(hand) for hand in hands])


def digests(x: Array) -> np.ndarray:
    """A 64-bit hash of the content of every row: equal rows, equal hashes.

    >>> a = digests(np.array([[1, 2], [3, 4], [1, 2]]))
    >>> bool(a[0] == a[2] != a[1])
    True
    """
    said = b"".join(hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest() for row in x)
    return np.frombuffer(said, "<u8")


def check_disjoint(where: str, parts: Mapping[str, np.ndarray], hint: str = "") -> None:
    """DataError if two parts share a row by its digest: a test on what was learned from would say nothing.

    >>> check_disjoint("some.npz", {"clients": np.array([1, 2]), "test": np.array([2, 3])})
    Traceback (most recent call last):
    fedcodist.errors.DataError: some.npz: got 1 rows of test that are also in clients; allowed none
    """
    names = list(parts)
    found = []
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            shared = int(np.isin(parts[other], parts[one]).sum())
            if shared:
                found.append(f"{shared} rows of {other} that are also in {one}")
    if found:
        raise data_error(where, ", ".join(found), "none", hint)


def drop_shared(where: str, parts: Mapping[str, np.ndarray], overlap: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """Which rows of each part stay, as masks, and what to tell of it. Parts go by digest and in order: what an earlier one has, a later
    one may not have. `overlap` is error, drop or allow.

    >>> parts = {"clients": np.array([1, 2]), "test": np.array([2, 3, 4])}
    >>> kept, notes = drop_shared("some.npz", parts, "drop")
    >>> kept["test"].tolist(), notes
    ([False, True, True], ['1 rows of test are also in clients: dropped'])
    """
    if overlap == "error":
        check_disjoint(where, parts, 'overlap = "drop" leaves them out, "allow" keeps them')
    kept, notes = {}, []
    names = list(parts)
    for i, name in enumerate(names):
        kept[name] = np.ones(len(parts[name]), bool)
        for earlier in names[:i] if overlap != "error" else []:
            shared = np.isin(parts[name], parts[earlier]) & kept[name]
            if shared.any():
                notes.append(f"{int(shared.sum())} rows of {name} are also in {earlier}: {'dropped' if overlap == 'drop' else 'kept'}")
                kept[name] &= ~shared
        if overlap == "allow":
            kept[name][:] = True
    return kept, notes


def some(what: str, n: int, size: int, key: Key) -> np.ndarray:
    """`size` of n public rows at random, in order.

    >>> len(some("images", 10, 3, keys.root(0)))
    3
    """
    if size > n:
        raise data_error("task.public_size", str(size), f"at most the {n} public {what}")
    return np.sort(keys.permutation(keys.derive(key, "public_size"), n)[:size])
