"""FedFTG (Zhang et al. 2022): after averaging, the server fine-tunes its model without data, on inputs of a generator.

Over another rule (`over`), whose round it is. The generator looks for inputs on which the averaged model and the clients' models differ;
there the model learns from the clients', each as far as it has seen the class. With `iterations` = 0 it is the rule below to the bit."""

from __future__ import annotations

from collections.abc import Generator as Talk
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import clients, keys, tree
from fedcodist.fold import Mean
from fedcodist.rule import Average, Diverged
from fedcodist.rules.datafree import Plan, tuned
from fedcodist.rules.fedmid import FedMiD
from fedcodist.rules.generator import Generator
from fedcodist.rules.labelled import model_of, overheard, seed_of
from fedcodist.rules.scaffold import Scaffold
from fedcodist.settings import Problem, checked, read_kind, setting
from fedcodist.types import Answer, Ask, Consumed, Info, Key, PoolState, Rule, Told, Tree

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool

BASES = {rule.kind: rule for rule in (Average, Scaffold, FedMiD)}  # those whose clients train the pool's own model


def read_over(value: Any, path: str, problems: list[Problem]) -> Any:
    """The rule below, by name or as a table."""
    return read_kind(BASES, value, path, problems, Average())


@dataclass(frozen=True)
@checked
class FedFTG(Rule):
    """Data-free fine-tuning of the server's model after the round of another rule."""

    kind: ClassVar[str] = "fedftg"
    consumes: ClassVar[tuple[Consumed, ...]] = ("label counts", "single models")
    secure: ClassVar[bool] = False
    over: Any = setting(Average(), reader=read_over)  # the rule whose round it is: average, scaffold or fedmid
    iterations: int = setting(10, ge=0, le=10**5)  # of the generator and the model by turns, in a round; 0 is the rule below
    steps: int = setting(5, ge=1, le=10**4)  # of the model in an iteration
    batch: int = setting(50, ge=2, le=10**5)  # inputs that are generated for a step
    noise: int = setting(100, ge=1, le=10**4)  # numbers that an input is generated from; 256 for CIFAR-100 in the paper
    lr: float = setting(0.1, gt=0, le=1e3)  # of the model's SGD in round 1
    generator_lr: float = setting(0.01, gt=0, le=1e3)  # of the generator's Adam in round 1
    decay: float = setting(0.998, gt=0, le=1)  # both rates are multiplied by it from round to round

    def problems(self, pool: Pool) -> list[Problem]:
        found, where = list(self.over.problems(pool)), f"pools.{pool.name}"
        if type(pool.fold) is not Mean or clients.grows(pool.clients):
            found.append(Problem(f"{where}.fold", getattr(pool.fold, "kind", "another"), "mean, of a fixed population"))
        if not clients.grows(pool.clients) and any(getattr(one.y, "ndim", 0) != 1 for one in islice(pool.clients.values(), 1)):
            found.append(Problem(f"{where}.rule", "fedftg on text", "one label a row: a generator makes images or vectors"))
        return found

    def begin(self, fed: Federation, pool: Pool, params: Tree) -> Tree:
        made = self._generator(fed).init(seed_of(params)) if self.iterations else ()
        return {"base": self.over.begin(fed, pool, params), "generator": made}

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Talk[Sequence[Ask], Sequence[Answer], Told]:
        talk = self.over.talk(fed, pool, state._replace(kept=state.kept["base"]), t, key)
        if not self.iterations:
            return Told((told := (yield from talk)).grad, {"base": told.kept, "generator": ()}, told.info)
        (grad, base, info), heard = yield from overheard(talk, fed.task.classes)
        heard = heard, state.params, keys.derive(key, "fedftg", t, fed.names.index(pool.name))
        return Told(grad, {"base": base, "generator": state.kept["generator"], "heard": heard}, info | self._info(int(info["clients"])))

    def settle(self, fed: Federation, pool: Pool, before: PoolState, after: PoolState, grad: Tree, t: int) -> PoolState:
        base, made = before.kept["base"], before.kept["generator"]
        after = self.over.settle(fed, pool, before._replace(kept=base), after._replace(kept=base), grad, t)
        if not self.iterations:
            return after._replace(kept={"base": after.kept, "generator": ()})
        heard, sent, key = before.kept["heard"]
        values, counts = heard.values
        members = jax.tree.map(lambda start, g: start - g, sent, model_of(values, sent))
        rates = jnp.asarray([self.lr, self.generator_lr]) * self.decay ** (t - 1)
        fixed = pool.model, self._generator(fed), Plan(self.iterations, self.steps, self.batch)
        params, made, *_ = tuned(*fixed, after.params, made, members, counts, rates, key)
        if not tree.finite((params, made)):
            raise Diverged("the fine-tuned model", pool.name, t)
        return after._replace(params=params, kept={"base": after.kept, "generator": made})

    def expects(self, fed: Federation, pool: Pool) -> Info:
        return {**self.over.expects(fed, pool), **(self._info(pool.cohort) if self.iterations else {})}

    def _info(self, many: int) -> Info:
        rows = self.iterations * self.batch  # what the generator's own layers take is not counted
        return {"server_digested": rows * (2 * many + self.steps), "server_predicted": rows * self.steps * many}

    def _generator(self, fed: Federation) -> Generator:
        return Generator(fed.task.spec.inputs, fed.task.classes, self.noise)
