"""Three budgets for the same tables: `smoke` on embedded data in minutes, `small` on real data in hours, `paper` as the paper did it.

A budget says, for each family of cells, from which shipped config they are made and what is set on top of it; nothing here trains. What is
smaller than in the paper is written down beside it: 300 of 1,500 rounds is a fifth, and a codistillation every 40 instead of every 200
rounds keeps the paper's seven of them, the last one half a period before the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedcodist.reproduce import paper


@dataclass(frozen=True)
class Family:
    """The cells on one kind of data: a shipped config of plain FedAvg in the central column, and what is set on top of it."""

    data: str  # in words
    config: str
    methods: Mapping[str, str]  # {method: its table in TOML}
    given: tuple[str, ...] = ()
    columns: Mapping[str, int] = field(default_factory=dict)  # {|P_H|: clients of the large pool}
    balanced: str = ""  # the column, besides those in the paper's places, in which FedAvg's two models end at about the same accuracy
    unit: str = "examples"  # that |P_H| is counted in
    outside_data: str = ""  # the out-of-domain public data, in words
    outside: tuple[str, ...] = ()  # what chooses it
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Figure 4: {public examples: what chooses them}
    domains: Mapping[str, str] = field(default_factory=dict)  # Table 2: {the paper's column: our domain}
    paper: bool = True  # whether the paper's numbers stand beside these
    half: str = ""  # the half of the paper's tables whose numbers these are, if it has another name
    tuned: str = ""  # the name of the settings that were tuned for it, if it is not its own
    budget: str = ""  # the one whose seeds, tuned settings and evaluations it has, if not that which it stands in

    @property
    def in_place(self) -> list[str]:
        """The columns that stand in the places of the paper's."""
        return paper.in_place(list(self.columns), self.balanced)

    @property
    def central(self) -> str:
        """The one in the middle: in the paper both models do about equally well there."""
        return paper.central(self.in_place)


@dataclass(frozen=True)
class Budget:
    """How much is spent."""

    name: str
    says: str  # in a sentence
    rounds: int
    period: int
    seeds: tuple[int, ...]  # of the cells that the paper's claims are about, of the domain shift and of the studies
    elsewhere: tuple[int, ...]  # of all other cells
    after: tuple[int, ...]  # rounds after a codistillation that Figure 3 shows
    every: int  # rounds between evaluations where pools are domain-shifted
    families: Mapping[str, Family]  # of Table 1 and Figure 4
    shifted: Mapping[str, Family]  # of Table 2 and Figure 3
    decides: bool = True  # whether its numbers say anything about the paper's claims


def methods(period: int, steps: int, merged_steps: int, batch: int, alpha: str = "0.5") -> dict[str, str]:
    """The three methods as TOML tables."""
    return {
        "fedavg": '{ kind = "fedavg" }',
        "periodic": f'{{ kind = "periodic", period = {period}, distill = {{ steps = {steps}, batch = {batch} }} }}',
        "merged": f'{{ kind = "merged", alpha = {alpha}, distill = {{ steps = {merged_steps}, batch = {batch} }} }}',
    }


def _sizes(whole: int, share: float = 1.0) -> dict[str, tuple[str, ...]]:
    """Figure 4's sizes, scaled; the whole is the in-domain cell of Table 1."""
    scaled = [round(share * size) for size in paper.FIGURE_4]
    return {str(size): () if size == whole else (f"task.public_size={size}",) for size in scaled}


SMALL_ROUNDS, SMALL_PERIOD = 300, 40
# Of text: 10,004 possible next words make a sentence of StackExchange dear, and the standard library is soon learned by heart.
TEXT_ROUNDS, TEXT_PERIOD, TEXT_COHORT = 120, 16, 10
SMOKE_ROUNDS, SMOKE_PERIOD = 15, 6
SHIFT = "language-shift"  # Table 1 has a family of language too, with other pools
QUESTIONS = {"answers": "answer", "questions": "question", "mixed": "all"}
LIBRARY = {"answers": "comment", "questions": "docstring", "mixed": "all"}
ONLY_OF = ('pools.small.clients={ where = { main_domain = "comment" } }', 'pools.large.clients={ where = { main_domain = "docstring" } }')
TINY_TEXT = '{ kind = "stdlib_text", modules = 160, vocab = 500, length = 12, max_examples = 40 }'

SMOKE = Budget(
    name="smoke",
    says=f"embedded data, {SMOKE_ROUNDS} rounds, tiny cohorts: it shows that everything runs, and decides nothing",
    rounds=SMOKE_ROUNDS,
    period=SMOKE_PERIOD,
    seeds=(0, 1),
    elsewhere=(0, 1),
    after=(1, 2, 3),
    every=3,
    families={
        "images": Family(
            data="Fashion-MNIST in small",
            config="quick/demo",
            given=(f"rounds={SMOKE_ROUNDS}",),
            methods=methods(SMOKE_PERIOD, 20, 5, 32, alpha='{ kind = "linear", start = 0.95, end = 0.6 }'),
            columns={"300": 6, "450": 9, "600": 12},
            outside_data="drawn shapes",
            outside=("task.public=out_of_domain",),
            sizes=_sizes(1_350, 0.1),
        ),
        "language": Family(
            data="Python's standard library",
            config="quick/demo",
            given=(
                f"rounds={SMOKE_ROUNDS}",
                f"task={TINY_TEXT}",
                'pools.small.model={ kind = "lstm", layers = 1, embed = 16, hidden = 16 }',
                'pools.large.model={ kind = "lstm", layers = 2, embed = 32, hidden = 32 }',
                "pools.small.cohort=5",
                'pools.small.work={ kind = "local_sgd", lr = 1.0, epochs = 1, batch = 20 }',
                'pools.small.server={ kind = "adam", lr = 0.03 }',
                'pools.large.server={ kind = "adam", lr = 0.03 }',
            ),
            methods=methods(SMOKE_PERIOD, 10, 4, 32, alpha='{ kind = "linear", start = 0.95, end = 0.6 }'),
            columns={"6": 6, "12": 12, "24": 24},
            unit="clients",
            outside_data="the language reference",
            outside=("task.public=out_of_domain",),
        ),
    },
    shifted={
        "language": Family(
            data="Python's standard library, comments and docstrings in the place of answers and questions",
            config="quick/text",
            given=(f"rounds={SMOKE_ROUNDS}", f"task={TINY_TEXT}", "pools.small.cohort=5", *ONLY_OF),
            methods=methods(SMOKE_PERIOD, 10, 4, 32),
            domains=LIBRARY,
            tuned=SHIFT,
        )
    },
    decides=False,
)

SMALL = Budget(
    name="small",
    says=f"real data, {SMALL_ROUNDS} rounds instead of the paper's {paper.ROUNDS:,}, and a periodic codistillation every {SMALL_PERIOD} "
    f"rounds instead of every {paper.PERIOD}; on text {TEXT_ROUNDS} rounds of {TEXT_COHORT} clients a pool, with a codistillation "
    f"every {TEXT_PERIOD}",
    rounds=SMALL_ROUNDS,
    period=SMALL_PERIOD,
    seeds=(0, 1, 2),
    elsewhere=(0,),
    after=(1, 2, 4, 8),
    every=10,
    families={
        "images": Family(
            data="CIFAR-100",
            config="paper/cifar-fedavg-4700",
            given=(f"rounds={SMALL_ROUNDS}", "evaluate_every=15"),
            methods=methods(SMALL_PERIOD, paper.PERIODIC_STEPS, paper.MERGED_STEPS, 64),
            columns=paper.IMAGE_SIZES,
            outside_data="CIFAR-10",
            outside=("task.public=cifar10",),
            sizes=_sizes(13_500),
        ),
        "language": Family(
            data="StackExchange",
            config="study/stackexchange-fedavg",
            given=(f"rounds={TEXT_ROUNDS}", "evaluate_every=12", f"pools.small.cohort={TEXT_COHORT}"),
            methods=methods(TEXT_PERIOD, paper.PERIODIC_STEPS, paper.MERGED_STEPS, 16),
            columns={"43": 43, "87": 87, "174": 174},
            unit="clients",
            outside_data="Reddit",
            outside=("task.public=reddit",),
        ),
    },
    shifted={
        "language": Family(
            data="StackExchange",
            config="study/stackexchange-shift-fedavg",
            given=(f"rounds={TEXT_ROUNDS}", f"pools.small.cohort={TEXT_COHORT}"),
            methods=methods(TEXT_PERIOD, paper.PERIODIC_STEPS, paper.MERGED_STEPS, 16),
            domains=QUESTIONS,
            tuned=SHIFT,
        ),
        "library": Family(
            data="Python's standard library, comments and docstrings in the place of answers and questions",
            config="quick/text",
            given=(f"rounds={TEXT_ROUNDS}", *ONLY_OF),
            methods=methods(TEXT_PERIOD, paper.PERIODIC_STEPS, paper.MERGED_STEPS, 32),
            domains=LIBRARY,
            paper=False,
        ),
    },
)

# Where FedAvg's two models end within about a point of each other, as those of the paper's central column do: found on held-out data.
BALANCED = {"15700": 157}
PAPER = Budget(
    name="paper",
    says=f"the paper's own {paper.ROUNDS:,} rounds, on its own data, and a balanced column of 157 clients: after {paper.ROUNDS:,} rounds "
    "of FedAvg on seed 100, at client rate .03 and server rates .003, held-out accuracy was 34.96 % for the small model, and for the large "
    "one 29.44, 33.90 and 35.76 % with 110, 142 and 173 clients. StackExchange, in the place of Stack Overflow, is that of budget small",
    rounds=paper.ROUNDS,
    period=paper.PERIOD,
    seeds=(0, 1, 2, 3, 4),
    elsewhere=(0, 1, 2),
    after=(1, 2, 5, 10, 20, 50, 100),
    every=50,
    families={
        "images": Family(
            data="CIFAR-100",
            config="paper/cifar-fedavg-4700",
            methods=methods(paper.PERIOD, paper.PERIODIC_STEPS, paper.MERGED_STEPS, 128),
            columns={**paper.IMAGE_SIZES, **BALANCED},
            balanced=next(iter(BALANCED)),
            outside_data="CIFAR-10",
            outside=("task.public=cifar10",),
            sizes=_sizes(13_500),
        ),
        "language": replace(SMALL.families["language"], budget=SMALL.name),
        "stackoverflow": Family(
            data="Stack Overflow",
            config="paper/stackoverflow-fedavg-296k",
            methods=methods(paper.PERIOD, paper.PERIODIC_STEPS, paper.MERGED_STEPS, 128),
            columns=paper.LANGUAGE_SIZES,
            outside_data="C4",
            outside=("task.public=c4",),
            half="language",
        ),
    },
    shifted={
        "language": replace(SMALL.shifted["language"], budget=SMALL.name),
        "stackoverflow": Family(
            data="Stack Overflow",
            config="paper/shift-fedavg",
            methods=methods(paper.PERIOD, paper.PERIODIC_STEPS, paper.MERGED_STEPS, 128),
            domains=QUESTIONS,
            half="language",
            tuned="stackoverflow-shift",
        ),
    },
)

BUDGETS = {budget.name: budget for budget in (SMOKE, SMALL, PAPER)}


def spent_on(family: Family, budget: Budget) -> Budget:
    """The budget of a family that stands in this one."""
    return BUDGETS[family.budget] if family.budget else budget
