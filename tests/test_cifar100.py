"""The paper's image task on small stores: sizes, who is where, what is shared, and the switches of what a model sees."""

import numpy as np
import pytest

from fedcodist import config
from fedcodist.clients import Clients
from fedcodist.data.overlap import digests
from fedcodist.data.partition import Iid, Pachinko
from fedcodist.data.store import Writer, locate
from fedcodist.errors import DataError
from fedcodist.objectives.images import Images
from fedcodist.settings import SettingError
from fedcodist.tasks import Cifar100


def images(rows: int, start: int = 0, side: int = 2) -> np.ndarray:
    """Images that are all different: their first bytes count."""
    x = np.zeros((rows, side, side, 3), np.uint8)
    x.reshape(rows, side * side * 3)[:, :4] = (np.arange(start, start + rows)[:, None] >> np.array([0, 8, 16, 24])) & 255
    return x


def make_store(
    name: str, train: int, test: int, clients: list[str] | None = None, classes: int = 100, twice: int = 0, first: int = 0
) -> None:
    """A store as `data prepare cifar100` makes it; the first `twice` test images are training images too."""
    with Writer(locate(name), {"name": name}) as writer:
        for split, rows, start in (("train", train, first), ("test", test, first + train)):
            x = images(rows, start)
            if split == "test":
                x[:twice] = images(twice, first)
            fine = np.arange(rows) % 100
            for column, values in (
                ("x", x),
                ("fine", fine.astype(np.int32)),
                ("coarse", (fine // 5).astype(np.int32)),
                ("hash", digests(x)),
            ):
                writer.append(f"{split}_{column}", values)
            if clients:
                writer.write_text(f"{split}_clients", clients)
                writer.append(f"{split}_ends", np.linspace(0, rows, len(clients) + 1).astype(np.int64)[1:])
        writer.finish(kind="labelled_images", classes=classes, options={})


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCODIST_DATA", str(tmp_path))
    return tmp_path


SMALL = {"partition": Pachinko(clients=20, examples=10), "public_clients": 6, "held_out_clients": 3, "size": 2}


def test_the_papers_numbers():
    make_store("cifar100", 50_000, 10_000)
    task = Cifar100(size=2).load()
    assert len(task.clients) == 315 and set(task.clients.sizes().values()) == {100}
    assert len(task.public.x) == 13_500 and task.public.y is None
    assert len(task.held_out.x) == 5_000 and len(np.unique(task.held_out.client)) == 50
    assert len(task.test.x) == 10_000 and len(np.unique(task.test.client)) == 100 and task.classes == 100
    pools = {}
    for name, take in (("3100", 31), ("4700", 47), ("6300", 63)):
        made = config.assemble(
            config.read(f"paper/cifar-fedavg-{name}", ["task.size=2", 'pools.small.model="mlp"', 'pools.large.model="mlp"']), task, 0
        )
        assert len(made.federation.pools["small"].clients) == 315
        pools[take] = set(made.federation.pools["large"].clients)
        assert len(pools[take]) == take
    assert pools[31] < pools[47] < pools[63]  # nested, and in the same order
    seen = np.concatenate([digests(x) for x in (task.public.x, task.held_out.x, *(task.clients[c].x for c in task.clients))])
    assert len(np.unique(seen)) == 50_000  # every training image once


def test_clients_are_stable_for_a_split_seed_and_others_for_another():
    make_store("cifar100", 200, 100)
    one, same, other = (Cifar100(**SMALL, split_seed=seed).load() for seed in (0, 0, 1))
    assert all(np.array_equal(one.clients[c].x, same.clients[c].x) for c in one.clients)
    assert set(one.clients) != set(other.clients) or any(not np.array_equal(one.clients[c].x, other.clients[c].x) for c in one.clients)


def test_publishers_clients_are_kept():
    names = [f"user{k}" for k in range(20)]
    make_store("cifar100", 200, 100, clients=names)
    task = Cifar100(**{**SMALL, "partition": Iid(clients=2)}).load()  # the partition is for files without clients
    assert len(task.clients) == 11 and set(task.clients) < set(names)
    first = sorted(task.clients)[0]
    start = 10 * names.index(first)
    assert np.array_equal(task.clients[first].x, images(10, start)) and task.clients[first].y.tolist() == [
        k % 100 for k in range(start, start + 10)
    ]
    assert len(np.unique(task.test.client)) == 20


def test_out_of_domain_public_data_leave_the_clients_as_they_are():
    make_store("cifar100", 200, 100)
    make_store("cifar10", 60, 10, first=10**6)
    here, there = Cifar100(**SMALL).load(), Cifar100(**SMALL, public="cifar10").load()
    assert list(here.clients) == list(there.clients) and len(here.public.x) == 60 and np.array_equal(there.public.x, images(60, 10**6))
    assert config.digest(here) != config.digest(there)


@pytest.mark.parametrize("public", ["in_domain", "cifar10"])
def test_public_size_takes_some(public):
    make_store("cifar100", 200, 100)
    make_store("cifar10", 60, 10, first=10**6)
    whole = Cifar100(**SMALL, public=public).load().public.x
    some = Cifar100(**SMALL, public=public, public_size=7).load().public.x
    assert len(some) == 7 and np.isin(digests(some), digests(whole)).all()
    with pytest.raises(DataError, match="public_size: got 61; allowed at most the 60 public images"):
        Cifar100(**SMALL, public=public, public_size=61).load()


def test_public_labels_are_dropped_unless_asked_for():
    make_store("cifar100", 200, 100)
    task = Cifar100(**SMALL, public_labels=True).load()
    assert np.array_equal(task.public.y, (task.public.x.reshape(60, -1)[:, 0].astype(int)) % 100)
    with pytest.raises(SettingError, match="public_labels: got true"):
        Cifar100(public="cifar10", public_labels=True)


def test_images_in_two_places():
    make_store("cifar100", 200, 100, twice=4)
    with pytest.raises(DataError, match='4 rows of test that are also in|overlap = "drop"') as error:
        Cifar100(**SMALL).load()
    assert "overlap" in str(error.value)
    kept, dropped = (Cifar100(**SMALL, overlap=how).load() for how in ("allow", "drop"))
    assert len(kept.test.x) == 100 and len(dropped.test.x) == 96 and len(dropped.test.client) == 96
    assert all("rows of test are also in" in note for note in (*kept.notes, *dropped.notes)) and kept.notes and dropped.notes


@pytest.mark.parametrize(
    "given, said",
    [
        ({"data": "absent"}, "data absent: got nothing at this path; allowed a prepared store"),
        ({"public_clients": 17}, "got 20 clients; allowed more than 17 public"),
        ({"partition": Pachinko(clients=30, examples=10)}, "300"),
        ({"public": "absent"}, "data absent"),
    ],
)
def test_what_does_not_fit(given, said):
    make_store("cifar100", 200, 100)
    with pytest.raises(DataError, match=said):
        Cifar100(**{**SMALL, **given}).load()


def test_a_store_of_another_kind():
    make_store("ten", 200, 100, classes=10)
    with pytest.raises(DataError, match="10 classes; allowed CIFAR-100's 100"):
        Cifar100(**SMALL, data="ten").load()
    with Writer(locate("words"), {}) as writer:
        writer.append("x", np.zeros((1, 1)))
        writer.finish(kind="text", options={})
    with pytest.raises(DataError, match="a store of text; allowed one of labelled_images"):
        Cifar100(**SMALL, data="words").load()


def test_data_are_mapped_and_clients_copied_only_when_asked():
    make_store("cifar100", 200, 100)
    task = Cifar100(**SMALL).load()
    assert isinstance(task.clients, Clients) and isinstance(task.clients.x, np.memmap)


# -- what a model sees --


def test_fixed_scale_is_fedjaxs():
    x = np.full((1, 2, 2, 3), 255, np.uint8)
    want = (1 - np.array([0.4914, 0.4822, 0.4465])) / np.array([0.2023, 0.1994, 0.2010])
    assert np.asarray(Images(2, scale="cifar").inputs(x))[0, 0, 0] == pytest.approx(want, rel=1e-5)


def test_fedjaxs_floor_is_the_root_of_the_pixels():
    x = np.zeros((1, 2, 2, 3), np.uint8)
    x[0, 0] = 2  # mean 1, deviation 1: far below sqrt(12)
    seen = np.asarray(Images(2, scale="fedjax").inputs(x))
    assert seen[0, 0, 0, 0] == pytest.approx(1 / 12**0.5, rel=1e-5)
    assert np.asarray(Images(2).inputs(x))[0, 0, 0, 0] == pytest.approx(1.0, rel=1e-5)


def cropped(how, x, seed):
    """The bytes as they are cropped in training."""
    import jax

    return np.asarray(how._crop_and_flip(*how._draw(x, jax.random.PRNGKey(seed))))


def test_one_draw_for_a_batch_never_at_the_last_offset():
    x = np.zeros((8, 6, 6, 1), np.uint8)
    x[:, :, :, 0] = np.arange(36).reshape(6, 6)
    seen = set()
    for k in range(60):
        crops = cropped(Images(4, flip=False, per_batch=True), x, k)
        assert (crops == crops[:1]).all()
        seen.add(int(crops[0, 0, 0, 0]))
    assert seen == {0, 1, 6, 7}  # offsets 0 and 1 in both directions; 2, the last, never
    each = cropped(Images(4, flip=False), x, 0)
    assert not (each == each[:1]).all()


def test_per_batch_without_room_does_not_move():
    x = images(3, side=2)
    assert np.array_equal(cropped(Images(2, flip=False, per_batch=True), x, 0), x)
