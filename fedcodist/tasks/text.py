"""Next-word prediction on a prepared text store: Stack Overflow, StackExchange, a company's messages.

The preparation of the store did everything that needs words; opening it maps ids into memory and reads no sentence. Clients keep their
domains, so that each pool may learn from one domain (the paper's questions and answers): `has_<domain>` and `main_domain` are attributes by
which pools choose clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedcodist import keys
from fedcodist.clients import Clients, Spans
from fedcodist.data.capacity import Capacity
from fedcodist.data.splits import choose_public
from fedcodist.data.store import Store, open_store
from fedcodist.errors import data_error
from fedcodist.objectives.next_token import NextToken
from fedcodist.settings import check, setting
from fedcodist.task import Row, Spec, Task
from fedcodist.types import Examples, Split


@dataclass(frozen=True)
class Text:
    """Text with authors, from a prepared store; `fedcodist data prepare` comes first."""

    kind: ClassVar[str] = "text"
    data: str  # the name or the path of a prepared store
    public: str = "in_domain"  # "in_domain", or the name of a store of public text with the same vocabulary, such as c4
    public_size: int | None = setting(None, ge=1)  # only so many public sentences, chosen at random
    public_labels: bool = False  # whether public data keeps its next words, for methods that may use them
    scale: float | None = setting(None, gt=0, le=1e4)  # divides the loss; the mean number of tokens of a sentence, if not given (A8)
    capacity: Capacity = Capacity()  # gives each client a level that pools can choose by
    split_seed: int = setting(0, ge=0, le=2**63 - 1)  # seed of the split into parts, the same for all seeds of a run

    def __post_init__(self) -> None:
        check(self)

    def spec(self) -> Spec:
        """What is learned, from what the store says of itself."""
        return self._spec(open_store(self.data, "text"))

    def _spec(self, store: Store) -> Spec:
        tokens = store.facts["tokens"]["federated"] / max(store.facts["examples"]["federated"], 1) + 1  # with EOS
        known, line = store.facts["vocabulary"], store["held_out_line"]
        row = Row((line.shape[1] - 1,), str(line.dtype))
        return Spec(NextToken(oov=known["oov"], scale=self.scale or round(tokens, 1)), row, row, known["size"])

    def load(self) -> Task:
        """Open the store; nothing is read but the clients' names and domains."""
        store = open_store(self.data, "text")
        other = store if self.public == "in_domain" else open_store(self.public, "text")
        _check_vocabulary(self.data, store, self.public, other)
        for part in ("federated", "held_out", "test"):
            if not store.facts["examples"][part]:
                raise data_error(f"data {self.data}", f"no {part} sentence", "at least one", "is it a store of public text?")
        key = keys.derive(keys.root(self.split_seed), "text")
        clients = Clients(*_both(store["federated_line"]), _spans(store, "federated"), np.asarray(store["federated_domain"]))
        public_line = other["public_line"]
        if self.public_size is not None:
            public_line = public_line[choose_public("sentences", len(public_line), self.public_size, key)]
        public_x, public_y = _both(public_line)
        domains = tuple(store.facts["domains"]) if len(store.facts["domains"]) > 1 else ("all",)
        attributes = _attributes(clients, domains)
        attributes["capacity"] = self.capacity.assign(clients, keys.derive(key, "capacity"), attributes, clients.sizes())
        spec = self._spec(store)
        return Task(
            name=self.kind,
            objective=spec.objective,
            clients=clients,
            public=Examples(public_x, public_y if self.public_labels else None),
            held_out=_split(store, "held_out", len(domains) > 1),
            test=_split(store, "test", len(domains) > 1),
            classes=spec.classes,
            domains=domains,
            attributes=attributes,
            digest=store.digest + (other.digest if other is not store else ""),
            notes=tuple(_notes(store)),
        )


def _both(line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a model reads, and what it should predict: views of the same ids."""
    return line[:, :-1], line[:, 1:]


def _spans(store: Store, part: str) -> Spans:
    return Spans.ending(store.text(f"{part}_clients"), np.asarray(store[f"{part}_ends"]))


def _split(store: Store, part: str, domains: bool) -> Split:
    ends = np.asarray(store[f"{part}_ends"])
    codes = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    return Split(*_both(store[f"{part}_line"]), codes, np.asarray(store[f"{part}_domain"]) if domains else None)


def _attributes(clients: Clients, domains: tuple[str, ...]) -> dict[str, Any]:
    """{attribute: {client: value}}: which domains each client has, and the one of most of its sentences."""
    spans = clients.rows
    assert isinstance(spans, Spans) and clients.domain is not None
    if len(domains) < 2:
        return {}
    counts = np.stack([np.add.reduceat((clients.domain == k).astype(np.int64), spans.start) for k in range(len(domains))])
    main = [domains[k] for k in counts.argmax(0)]
    has = {f"has_{name}": dict(zip(spans.names, np.where(counts[k] > 0, "yes", "no").tolist())) for k, name in enumerate(domains)}
    return {"main_domain": dict(zip(spans.names, main)), **has}


def _check_vocabulary(name: str, store: Store, other_name: str, other: Store) -> None:
    ours, theirs = store.facts["vocabulary"], other.facts["vocabulary"]
    if ours["sha256"] != theirs["sha256"] or store.facts["length"] != other.facts["length"]:
        got = f"a vocabulary of {theirs['size']} ({theirs['sha256'][:8]}), {other.facts['length']} tokens a sentence"
        allowed = f"that of {name}: {ours['size']} ({ours['sha256'][:8]}), {store.facts['length']} tokens"
        raise data_error(f"data {other_name}", got, allowed, f"prepare it with vocabulary = {name}")


def _notes(store: Store) -> list[str]:
    facts = store.facts
    words, unknown = facts["tokens"]["federated"], facts["unknown_tokens"]["federated"]
    counts = f"{facts['examples']['held_out']:,} held out, {facts['examples']['test']:,} test sentences"
    return [
        f"{facts['clients']['federated']:,} clients, {facts['examples']['federated']:,} sentences; {counts}",
        f"{100 * unknown / max(words, 1):.1f} % of the clients' words are out of the vocabulary of {facts['vocabulary']['size']:,}",
        *facts["notes"],
    ]
