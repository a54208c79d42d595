"""Our side of every workload, composed as a user composes it. Run by the driver: `python -m benches.ours NAME THREADS [lazy]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

import fedcodist
from benches import workload as w
from fedcodist import (
    CNN,
    LSTM,
    Classify,
    Compiled,
    Constant,
    Distiller,
    Examples,
    FedAvg,
    Federation,
    Images,
    Learns,
    LocalSGD,
    MergedCodist,
    NextToken,
    Pool,
    Split,
    Task,
    evaluate,
    keys,
    native,
    tree,
)
from fedcodist.cli.arguments import prepare_jax
from fedcodist.servers import Adam

ROUNDS = 1_000  # more than any bench has turns: the students' rate decays over them


class Lazy(Mapping[str, Any]):
    """Clients whose data is made when it is asked for, so that it does not count in the memory of a round."""

    def __init__(self, clients: int, first: int = 0, of: Callable[[int], tuple[np.ndarray, np.ndarray]] = w.examples) -> None:
        self.numbers, self.of = {f"client-{k:04d}": k for k in range(first, first + clients)}, of

    def __getitem__(self, client: str) -> Examples:
        return Examples(*self.of(self.numbers[client]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def pool(size: str, data: Mapping[str, Any], cohort: int) -> Pool:
    """A pool of image clients."""
    return Pool(
        size,
        CNN(*w.CNNS[size]).build((w.CROP, w.CROP, 3), w.CLASSES),
        data,
        cohort,
        work=LocalSGD(lr=w.CLIENT_LR, epochs=1, batch=w.BATCH, shuffle=True, augment=True),
        server=Adam(eps=w.SERVER_EPS).optimizer(),
        lr=Constant(w.SERVER_LR),
        learns=Learns(lr=w.STUDENT_LR, decay=1.0, self_weight=w.SELF_WEIGHT),
    )


def federation(
    work: w.Workload, threads: int, lazy: bool = False, of: Callable[[int], tuple[np.ndarray, np.ndarray]] = w.examples
) -> tuple[Federation, Any]:
    """The federation and the method of a workload; `of` gives a client's images."""
    engine = Compiled(workers=threads)
    if work.family == "w2":
        layers, embed, hidden = w.LSTMS[work.size]
        clients = {**Lazy(work.clients, of=w.sentences)}
        x, y = w.sentences(work.clients)  # of no client
        task = Task("text", NextToken(oov=w.VOCABULARY - 1), clients, Examples(x), Split(x, y), Split(x, y), w.VOCABULARY)
        language = Pool(
            work.size,
            LSTM(layers, embed, hidden).build((w.LENGTH,), w.VOCABULARY),
            clients,
            work.cohort,
            work=LocalSGD(lr=w.TEXT_LR, epochs=1, batch=w.BATCH, shuffle=True, augment=False),
            server=Adam(eps=w.SERVER_EPS).optimizer(),
            lr=Constant(w.SERVER_LR),
        )
        return Federation(task, {work.size: language}, engine=engine), FedAvg()
    sizes = list(w.CNNS) if work.family == "w3" else [work.size]
    populations = {size: Lazy(work.clients, first=i * work.clients, of=w.pieces if lazy else of) for i, size in enumerate(sizes)}
    data = populations if lazy else {size: {**clients} for size, clients in populations.items()}
    everyone = {name: clients[name] for clients in data.values() for name in clients} if not lazy else data[sizes[0]]
    x, y = w.examples(10**6, w.TEST if work.family == "eval" else w.EXAMPLES)
    public = w.examples(10**6 + 1, w.PUBLIC if work.family == "w3" else w.EXAMPLES)[0]
    task = Task("images", Classify(Images(size=w.CROP)), everyone, Examples(public), Split(x, y), Split(x, y), w.CLASSES)
    pools = {size: pool(size, data[size], work.cohort) for size in sizes}
    method = MergedCodist(alpha=Constant(w.ALPHA), distill=Distiller(steps=w.STEPS, batch=w.PUBLIC_BATCH, eps=w.STUDENT_EPS))
    fed = Federation(task, pools, engine=engine, rounds=ROUNDS)
    return fed, method if work.family == "w3" else FedAvg()


def wide() -> float:
    """The share of a wide convolution's multiplications that we do."""
    return w.WINOGRAD if native.path() else 1.0


def main() -> None:
    """Answer the driver's turns, with the compilation cache that `fedcodist run` has."""
    prepare_jax()
    work, threads = w.asked()
    fed, method = federation(work, threads, "lazy" in sys.argv)
    key = keys.root(0)
    state, t = method.init(fed, key), 0

    def one_round() -> float:
        nonlocal state, t
        t += 1
        state, info = method.round(fed, state, t, key)
        jax.block_until_ready(state)
        return float(np.mean([info[name]["train_loss"] for name in fed.names]))

    def one_evaluation() -> float:
        return evaluate(fed, method.models(fed, state), "test")[work.size]["all"]["loss"]

    versions = {
        "fedcodist": fedcodist.__version__,
        "kernels": native.describe(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "numpy": np.__version__,
    }
    parameters = sum(int(tree.size(state[name].params)) for name in fed.names)
    w.serve(one_evaluation if work.family == "eval" else one_round, parameters, versions, wide())


if __name__ == "__main__":
    main()
