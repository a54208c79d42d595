"""The paper's image task: CIFAR-100, federated, from a prepared store.

Images without clients are dealt to 500 clients by Pachinko allocation, as in TFF's fed_cifar100: by a draw of our own, not TFF's
(DEVIATION D8). Clients that come with the files are kept. Of the 500 clients 315 are federated, 135 give the public data and 50 are held
out, always whole clients (A10); the 10,000 test images are the publisher's. Out-of-domain public data are CIFAR-10's 50,000 training
images; the 135 clients then stay unused, so that both experiments have the same federated clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedcodist import keys
from fedcodist.clients import Clients, Spans
from fedcodist.data.capacity import Capacity
from fedcodist.data.overlap import drop_shared
from fedcodist.data.partition import PARTITIONS, Pachinko, client_names, owners
from fedcodist.data.splits import choose_public, shuffled
from fedcodist.data.store import Store, open_store
from fedcodist.errors import data_error
from fedcodist.objectives.classify import Classify
from fedcodist.objectives.images import Images, Scale
from fedcodist.settings import Problem, SettingError, check, setting
from fedcodist.task import Row, Spec, Task
from fedcodist.types import Examples, Key, Split

CLASSES, SIDE = 100, 32


@dataclass(frozen=True)
class Cifar100:
    """CIFAR-100 with clients, in the paper's proportions. `fedcodist data prepare cifar100 --from PATH` comes first."""

    kind: ClassVar[str] = "cifar100"
    data: str = "cifar100"  # the name or the path of a prepared store
    partition: Any = setting(Pachinko(), kinds=PARTITIONS)  # deals the images to clients, for files that come without any
    public: str = "in_domain"  # "in_domain", or the name of a store of images, such as cifar10
    public_clients: int = setting(135, ge=1)  # clients whose images become the public data
    held_out_clients: int = setting(50, ge=1)  # clients whose images are held out
    public_size: int | None = setting(None, ge=1)  # only so many public images, chosen at random
    public_labels: bool = False  # whether public data keeps its labels, for methods that may use them
    size: int = setting(24, ge=1, le=SIDE)  # height and width of the crop that a model sees
    pad: int = setting(0, ge=0, le=SIDE)  # zero pixels added on every side before cropping
    flip: bool = True  # whether training images are flipped left to right at random
    scale: Scale = "image"  # how pixels are standardised: by each image, by fixed means and deviations, or as FedJAX does (A2)
    per_batch: bool = False  # one crop and one flip for a whole batch, as in FedJAX, instead of one for each image (A3)
    public_flips: bool = True  # whether public images are flipped both ways at random (A19)
    mixup_beta: float = setting(2.0, ge=0, le=1e3)  # mixup of public images: weights from Beta(b, b); 0 is off (A18)
    overlap: Literal["error", "drop", "allow"] = "error"  # what to do with images of the test that are training images too
    capacity: Capacity = Capacity()  # gives each client a level that pools can choose by
    split_seed: int = setting(0, ge=0, le=2**63 - 1)  # seed of the split into parts, the same for all seeds of a run

    def __post_init__(self) -> None:
        check(self)
        if self.public_labels and self.public != "in_domain":
            raise SettingError([Problem("Cifar100.public_labels", "true", 'false unless public = "in_domain"', "they name other classes")])

    def spec(self) -> Spec:
        """What is learned, without opening the store."""
        seen = Images(self.size, self.pad, self.flip, self.public_flips, self.mixup_beta, self.scale, self.per_batch)
        return Spec(Classify(seen), Row((SIDE, SIDE, 3), "uint8"), Row((), "int32"), CLASSES)

    def load(self) -> Task:
        """Open the store, deal its images to clients, divide the clients."""
        store = open_store(self.data, "labelled_images")
        if store.facts["classes"] != CLASSES:
            raise data_error(f"data {self.data}", f"{store.facts['classes']} classes", "CIFAR-100's 100")
        key = keys.derive(keys.root(self.split_seed), self.kind)
        x, y = store["train_x"], store["train_fine"]
        rows = _clients(store, "train", self.partition, keys.derive(key, "deal"))
        order = shuffled(rows, keys.derive(key, "divide"))
        if self.public_clients + self.held_out_clients >= len(order):
            asked = f"{self.public_clients} public + {self.held_out_clients} held out"
            raise data_error(f"data {self.data}", f"{len(order)} clients", f"more than {asked}")
        public_ids, rest = order[: self.public_clients], order[self.public_clients :]
        held_ids, federated = rest[: self.held_out_clients], sorted(rest[self.held_out_clients :])
        clients = Clients(x, y, {name: rows[name] for name in federated})
        public_rows = owners(rows[name] for name in sorted(public_ids))[0]
        held_rows, held_codes = owners(rows[name] for name in sorted(held_ids))
        test_rows, test_codes = owners(_test(store, key).values())
        parts = {"clients": owners(clients.rows.values())[0], "public": public_rows, "held_out": held_rows, "test": test_rows}
        hashes = {part: np.asarray(store["test_hash" if part == "test" else "train_hash"])[r] for part, r in parts.items()}
        other, notes = None, list(store.facts.get("notes", []))
        if self.public != "in_domain":
            other = open_store(self.public, "labelled_images")
            parts["public"], hashes["public"] = np.arange(len(other["train_x"])), np.asarray(other["train_hash"])
        kept, said = drop_shared(f"data {self.data}", hashes, self.overlap)
        notes += said
        public_rows = parts["public"][kept["public"]]
        if self.public_size is not None:
            public_rows = public_rows[choose_public("images", len(public_rows), self.public_size, key)]
        source = store if other is None else other
        public_y = np.asarray(y[public_rows]) if self.public_labels else None
        held, test = kept["held_out"], kept["test"]
        main = {name: str(np.bincount(y[r]).argmax()) for name, r in clients.rows.items()}
        attributes: dict[str, Any] = {"main_class": main}
        attributes["capacity"] = self.capacity.assign(clients, keys.derive(key, "capacity"), attributes, clients.sizes())
        return Task(
            name=self.kind,
            objective=self.spec().objective,
            clients=clients,
            public=Examples(source["train_x"][public_rows], public_y),
            held_out=Split(x[held_rows[held]], y[held_rows[held]], held_codes[held]),
            test=Split(store["test_x"][test_rows[test]], store["test_fine"][test_rows[test]], test_codes[test]),
            classes=CLASSES,
            attributes=attributes,
            digest=store.digest + (other.digest if other else ""),
            notes=tuple(notes),
        )


def _clients(store: Store, split: str, partition: Any, key: Key) -> dict[str, np.ndarray]:
    """{client: rows}: the publisher's clients, or clients made by the partition."""
    if f"{split}_ends" in store:
        return dict(Spans.ending(store.text(f"{split}_clients"), np.asarray(store[f"{split}_ends"])).items())
    y, coarse = np.asarray(store[f"{split}_fine"]), np.asarray(store[f"{split}_coarse"])
    hands = partition.deal(y, key, coarse=coarse)
    return dict(zip(client_names(len(hands)), hands, strict=True))


def _test(store: Store, key: Key) -> dict[str, np.ndarray]:
    """The test images as clients of 100, as in TFF; their clients only matter for means over clients."""
    rows = len(store["test_x"])
    examples = min(100, rows)
    dealt = _clients(store, "test", Pachinko(clients=rows // examples, examples=examples), keys.derive(key, "deal", "test"))
    rest = np.setdiff1d(np.arange(rows), np.concatenate(list(dealt.values())))
    return {**dealt, "rest": rest} if len(rest) else dealt
