"""Small Fashion-MNIST, which comes with the package: 5,000 training and 1,000 test images, federated by skewed labels.

This is the paper's layout of CIFAR-100 on a small scale: clients of equal size whose label shares come from a Dirichlet; of 100 clients 63
are federated, 27 give the in-domain public data and 10 are held out (there 315, 135 and 50). Out-of-domain public data are drawn shapes in
the place of CIFAR-10, unrelated to clothes; the 27 clients then stay unused, so that both runs have the same federated clients.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from importlib import resources
from typing import ClassVar, Literal

import numpy as np

from fedcodist import keys
from fedcodist.clients import Clients
from fedcodist.data.capacity import Capacity
from fedcodist.data.overlap import check_disjoint, digests
from fedcodist.data.partition import Dirichlet, client_names, owners
from fedcodist.data.splits import check_shares, choose_public, divide
from fedcodist.errors import data_error
from fedcodist.objectives.classify import Classify
from fedcodist.objectives.images import Images
from fedcodist.settings import Problem, SettingError, check, setting
from fedcodist.task import Row, Spec, Task
from fedcodist.types import Examples, Key, Split

CLASSES, SIDE, TRAIN = 10, 28, 5_000
TEST_CLIENTS = 20
SHAPES = 1_350  # as many as there are in-domain public images
BLOCK = 1_000  # shapes drawn at once, to bound memory


@dataclass(frozen=True)
class FashionImages:
    """Fashion-MNIST in small."""

    kind: ClassVar[str] = "fashion"
    clients: int = setting(100, ge=3, le=TRAIN)  # clients before some become public or held out
    dirichlet: float = setting(0.3, ge=1e-3, le=1e6)  # concentration of the clients' label shares; small is skewed
    public_share: float = setting(0.27, gt=0, lt=1)  # share of the clients whose images become public data
    held_out_share: float = setting(0.1, gt=0, lt=1)  # share of the clients whose images are held out
    public: Literal["in_domain", "out_of_domain"] = "in_domain"  # public data of the same kind, or drawn shapes
    public_labels: bool = False  # whether public data keeps its labels, for methods that may use them
    public_size: int | None = setting(None, ge=1, le=100_000)  # only so many public images, chosen at random; or so many shapes
    size: int = setting(24, ge=1, le=SIDE)  # height and width of the crop that a model sees
    pad: int = setting(0, ge=0, le=SIDE)  # zero pixels added on every side before cropping
    flip: bool = True  # whether training images are flipped left to right at random
    public_flips: bool = True  # whether public images are flipped both ways at random (A19)
    mixup_beta: float = setting(2.0, ge=0, le=1e3)  # mixup of public images: weights from Beta(b, b); 0 is off (A18)
    split_seed: int = setting(0, ge=0, le=2**63 - 1)  # seed of the split into parts, the same for all seeds of a run

    def __post_init__(self) -> None:
        check(self)
        check_shares(self, "public_share", "held_out_share")
        if self.public_labels and self.public == "out_of_domain":
            only = 'false with public = "out_of_domain"'
            raise SettingError([Problem("FashionImages.public_labels", "true", only, "shapes have no labels")])

    def spec(self) -> Spec:
        """What is learned, without reading an image."""
        seen = Images(self.size, self.pad, self.flip, self.public_flips, self.mixup_beta)
        return Spec(Classify(seen), Row((SIDE, SIDE, 1), "uint8"), Row((), "int32"), CLASSES)

    def load(self) -> Task:
        """Read the images and deal them to clients."""
        key = keys.derive(keys.root(self.split_seed), self.kind)
        data = _read()
        x, y, test_x, test_y = (data[name] for name in ("train_x", "train_y", "test_x", "test_y"))
        hands = Dirichlet(self.clients, self.dirichlet).deal(y, keys.derive(key, "deal"))
        rows = dict(zip(client_names(self.clients), hands, strict=True))
        shares = {"public": self.public_share, "held_out": self.held_out_share}
        parts = divide(rows, shares, "federated", keys.derive(key, "divide"))
        clients = Clients(x, y, {name: rows[name] for name in parts["federated"]})
        public_rows, _ = owners(rows[name] for name in parts["public"])
        if self.public == "out_of_domain":
            public = Examples(shapes(self.public_size or SHAPES, keys.derive(key, "shapes")))
        else:
            if self.public_size is not None:
                public_rows = public_rows[choose_public("images", len(public_rows), self.public_size, key)]
            public = Examples(x[public_rows], y[public_rows] if self.public_labels else None)
        held_rows, held_codes = owners(rows[name] for name in parts["held_out"])
        test_rows, test_codes = owners(Dirichlet(TEST_CLIENTS, self.dirichlet).deal(test_y, keys.derive(key, "deal", "test")))
        held_out, test = Split(x[held_rows], y[held_rows], held_codes), Split(test_x[test_rows], test_y[test_rows], test_codes)
        known = {"clients": digests(x)[owners(clients.rows.values())[0]]}
        known |= {"public": digests(public.x), "held_out": digests(held_out.x), "test": digests(test.x)}
        check_disjoint(self.kind, known)
        unused = TRAIN - sum(map(len, hands))
        return Task(
            name=self.kind,
            objective=self.spec().objective,
            clients=clients,
            public=public,
            held_out=held_out,
            test=test,
            classes=CLASSES,
            attributes={
                "capacity": Capacity().assign(clients, keys.derive(key, "capacity"), {}, {}),
                "main_class": {name: str(np.bincount(y[r]).argmax()) for name, r in clients.rows.items()},
            },
            notes=(f"{unused} images left out so that clients are of equal size",) if unused else (),
        )


def shapes(n: int, key: Key) -> np.ndarray:
    """Drawn images, [n, 28, 28, 1] bytes: two of ellipse, rectangle, gradient, stripes, blobs and noise, blended.

    >>> shapes(3, keys.root(0)).shape
    (3, 28, 28, 1)
    """
    blocks = [_shapes(min(BLOCK, n - start), keys.generator(keys.derive(key, start))) for start in range(0, n, BLOCK)]
    return np.concatenate(blocks)


def _shapes(n: int, draw: np.random.Generator) -> np.ndarray:
    one, other, weight = _layer(n, draw), _layer(n, draw), draw.uniform(0.2, 0.8, (n, 1, 1))
    grain = 0.02 * draw.standard_normal((n, SIDE, SIDE))  # so that no two images are equal
    return (255 * np.clip(weight * one + (1 - weight) * other + grain, 0, 1)).astype(np.uint8)[..., None]


def _layer(n: int, draw: np.random.Generator) -> np.ndarray:
    """One kind of shape for each image: [n, 28, 28] in 0..1."""
    down, right = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]

    def number(low: float, high: float) -> np.ndarray:
        return draw.uniform(low, high, (n, 1, 1))

    angle, dy, dx = number(0, 2 * np.pi), number(-0.5, 0.5), number(-0.5, 0.5)
    along = (right - dx) * np.cos(angle) + (down - dy) * np.sin(angle)  # rotated and shifted coordinates
    across = (down - dy) * np.cos(angle) - (right - dx) * np.sin(angle)
    high, low = number(0.2, 0.8), number(0.2, 0.8)
    level = number(0.3, 1)
    blob = sum(np.exp(-((down - number(-1, 1)) ** 2 + (right - number(-1, 1)) ** 2) / number(0.02, 0.3)) for _ in range(4))
    kinds = (
        level * ((along / low) ** 2 + (across / high) ** 2 < 1),  # ellipse
        level * ((np.abs(along) < low) & (np.abs(across) < high)),  # rectangle
        level * (along + 2) / 4,  # gradient
        level * (np.sin(along * number(4, 25)) > 0),  # stripes
        level * np.minimum(blob, 1),  # blobs
        level * draw.random((n, SIDE, SIDE)),  # noise
    )
    chosen = draw.integers(0, len(kinds), n)
    return np.stack(kinds)[chosen, np.arange(n)]


def _read() -> dict[str, np.ndarray]:
    """The embedded images: x [rows, 28, 28, 1] bytes, y [rows] int32."""
    try:
        with resources.files("fedcodist").joinpath("tasks", "fashion.npz").open("rb") as file:
            data = dict(np.load(file, allow_pickle=False))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise data_error("fedcodist/tasks/fashion.npz", f"{error}", "the file that comes with the package", "install again") from error
    return {name: a.astype(np.int32) if name.endswith("y") else a[..., None] for name, a in data.items()}
