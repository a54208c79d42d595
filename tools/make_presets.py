"""Write the configs of the paper's tables and figures, of the StackExchange study and of the studies that go beyond the paper, or with
--check fail when they are stale.

The numbers are the paper's own (Table 1 and Table 2: test accuracy in percent, small and large model), from `fedcodist.reproduce.paper`.
The paper does not print the rates, temperatures and weights that it tuned: those in the base configs are starting points, and each header
says so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from fedcodist.reproduce.paper import FIGURE_4, IMAGE_SIZES, IMAGES, LANGUAGE, LANGUAGE_SIZES, SHIFT
from fedcodist.reproduce.stores import PREPARE

CONFIGS = Path(__file__).parent.parent / "fedcodist/configs"

METHODS = {
    "fedavg": 'kind = "fedavg"',
    "periodic": 'kind = "periodic"\nperiod = 200\ndistill = { steps = 200, batch = 128 }',
    "merged": 'kind = "merged"\nalpha = 0.5\ndistill = { steps = 32, batch = 128 }',
}
SPOKEN = {"fedavg": "FedAvg", "periodic": "PeriodicCodist", "merged": "MergedCodist"}
UNTUNED = "# The paper tunes rates, temperatures and weights and does not print them; these are starting points, not its values."

CIFAR_BASE = """rounds = 1500
seeds = [0, 1, 2]
evaluate_every = 50
membership = "nested"

[task]
kind = "cifar100"
public = "in_domain"   # 135 clients, 13,500 images without labels
overlap = "allow"      # CIFAR-100 has a few images twice; the paper's 10,000 test images are all kept

[pools.small]          # every federated client: 315, 31,500 examples
model   = { kind = "cnn", filters = [16, 32, 32], dense = [64, 128] }    # 109,348 parameters
cohort  = 20
work    = { kind = "local_sgd", lr = 0.1, epochs = 1, batch = 20 }
server  = { kind = "adam", lr = 0.003, eps = 1e-5, decay = "linear" }
learns  = { lr = 1e-3, decay = 0.1, self_weight = 0.05 }
teaches = { temperature = 1.0 }

[pools.large]
like    = "small"
model   = { kind = "cnn", filters = [32, 64, 64], dense = [128, 256] }   # 410,084 parameters
clients = { take = 47 }

[method]
kind = "fedavg"
"""
STACK_BASE = """rounds = 1500
seeds = [0, 1, 2]
evaluate_every = 50
membership = "nested"

[task]
kind = "text"
data = "stackoverflow"
scale = 13.3           # FedJAX's expected length of a sentence

[pools.small]          # every federated client: 34,248, 13,567,778 examples
model   = { kind = "lstm", layers = 1, embed = 96, hidden = 70 }     # 1,984,348 parameters
cohort  = 20
work    = { kind = "local_sgd", lr = 0.3, epochs = 1, batch = 20 }
server  = { kind = "adam", lr = 0.003, eps = 1e-5, decay = "linear" }
learns  = { lr = 1e-3, decay = 0.1, self_weight = 0.05 }
teaches = { temperature = 1.0 }

[pools.large]
like    = "small"
model   = { kind = "lstm", layers = 2, embed = 192, hidden = 140 }   # 4,278,644 parameters
clients = { take = 684 }

[method]
kind = "fedavg"
"""
SHIFT_POOLS = """membership = "disjoint"

[task]
kind = "text"
data = "stackoverflow-shift"
scale = 13.3
capacity = { shares = { high = 0.5, low = 0.5 } }   # two halves of the users, so that no one is in both pools

[pools.small]          # answers only: 30,000 clients, 11,580,368 examples
model   = { kind = "lstm", layers = 1, embed = 96, hidden = 70 }
clients = { where = { capacity = "low", has_answer = "yes" }, take = 30000 }
domain  = "answer"
cohort  = 20
work    = { kind = "local_sgd", lr = 0.3, epochs = 1, batch = 20 }
server  = { kind = "adam", lr = 0.003, eps = 1e-5, decay = "linear" }
learns  = { lr = 1e-3, decay = 0.1, self_weight = 0.05 }
teaches = { temperature = 1.0 }

[pools.large]          # questions only: 30,000 clients, 5,060,866 examples
like    = "small"
model   = { kind = "lstm", layers = 2, embed = 192, hidden = 140 }
clients = { where = { capacity = "high", has_question = "yes" }, take = 30000 }
domain  = "question"
"""
STUDY_BASE = """rounds = 300
seeds = [0, 1, 2]
evaluate_every = 15
membership = "nested"

[task]
kind = "text"
data = "stackexchange"

[pools.small]          # every federated client: 1,736 authors
model   = { kind = "lstm", layers = 1, embed = 96, hidden = 70 }
cohort  = 20
work    = { kind = "local_sgd", lr = 1.0, epochs = 1, batch = 20 }
server  = { kind = "adam", lr = 0.01, eps = 1e-5, decay = "linear" }
learns  = { lr = 1e-3, decay = 0.1, self_weight = 0.05 }
teaches = { temperature = 1.0 }

[pools.large]
like    = "small"
model   = { kind = "lstm", layers = 2, embed = 192, hidden = 140 }
clients = { take = 87 }   # a twentieth

[method]
kind = "fedavg"
"""
STUDY_SHIFT = """membership = "disjoint"

[task]
kind = "text"
data = "stackexchange"
capacity = { shares = { high = 0.5, low = 0.5 } }

[pools.small]
clients = { where = { capacity = "low", has_answer = "yes" } }
domain  = "answer"

[pools.large]
clients = { where = { capacity = "high", has_question = "yes" } }
domain  = "question"
"""
QUARTER_POOLS = """
[pools.quarter]        # every federated client
like    = "small"
model   = { kind = "cnn", filters = [8, 16, 16], dense = [32, 64] }
clients = {}

[pools.small]          # half of them
clients = { share = 0.5 }
"""
SHORT = "rounds = 300\nevaluate_every = 15\n"
ALPHAS = {  # what the alpha 0.5 of MergedCodist becomes: (the end of the name, the alpha, in words)
    "every-2": ('{ kind = "every", k = 2, value = 0.5 }', "in every 2nd round, and plain FedAvg in the others"),
    "every-5": ('{ kind = "every", k = 5, value = 0.5 }', "in every 5th round, and plain FedAvg in the others"),
    "every-10": ('{ kind = "every", k = 10, value = 0.5 }', "in every 10th round, and plain FedAvg in the others"),
    "warm-up": ('{ kind = "linear", start = 1.0, end = 0.5 }', "with less weight on the teachers while they are still bad"),
    "after": ('{ kind = "after", k = 100, value = 0.5 }', "after 100 rounds of plain FedAvg"),
    "cool-down": ('{ kind = "cosine", start = 0.5, end = 1.0 }', "with less and less weight on the teachers"),
}


def header(lines: list[str], needs: list[str], name: str, twin: bool) -> str:
    """What it reproduces, the paper's numbers, and the commands."""
    wrapped = [*(f"# {line}" for line in lines), "#", UNTUNED]
    wrapped += [f"# First: {command}" for command in (PREPARE[need] for need in needs)]
    wrapped.append(f"# Run it: fedcodist run {name}{' --twin' if twin else ''}")
    return "\n".join(wrapped) + "\n"


def cells(prefix: str, table: Mapping, sizes: Mapping[str, int], base: str, unit: str, need: str, outside: str) -> dict[str, str]:
    """One config for every cell of one half of Table 1."""
    middle = list(sizes)[1]
    base_name = f"paper/{prefix}-fedavg-{middle}"
    found = {}
    for (method, domain), numbers in table.items():
        public = outside if domain == "out-of-domain" else ""
        for size, (small, large) in numbers.items():
            name = f"paper/{prefix}-{method}-{size}" + (f"-{public}" if public else "")
            where = f"{public.upper()} as public data" if public else "in-domain public data"
            said = [f"Table 1, {unit}, |P_H| = {size} examples ({sizes[size]} clients), {where}, {SPOKEN[method]}."]
            said.append(f"The paper: small {small:.2f}, large {large:.2f} % test accuracy.")
            text = header(said, [need, *([public] if public else [])], name, method != "fedavg")
            if name == base_name:
                found[name] = text + base
                continue
            text += f'like = "{base_name}"\n'
            if public:
                text += f'task = {{ public = "{public}" }}\n'
            if size != middle:
                text += f"\n[pools.large]\nclients = {{ take = {sizes[size]} }}\n"
            if method != "fedavg":
                text += f"\n[method]\n{METHODS[method]}\n"
            found[name] = text
    return found


def shorten(method: str) -> str:
    """For the study's 300 rounds on two cores: sentences with 10,004 possible next words make a large batch dear."""
    return METHODS[method].replace("200", "50").replace("batch = 128", "batch = 32")


def configs() -> dict[str, str]:
    """{name: text} of all."""
    found = cells("cifar", IMAGES, IMAGE_SIZES, CIFAR_BASE, "CIFAR-100", "cifar100", "cifar10")
    found |= cells("stackoverflow", LANGUAGE, LANGUAGE_SIZES, STACK_BASE, "Stack Overflow", "stackoverflow", "c4")
    for method, numbers in SHIFT.items():
        name = f"paper/shift-{method}"
        said = [
            f"Table 2, domain-shifted pools on Stack Overflow, {SPOKEN[method]}: the small model learns answers, the large one questions.",
            "The paper: "
            + "; ".join(f"{domain} small {s:.2f}, large {large:.2f}" for domain, (s, large) in numbers.items())
            + " % test accuracy.",
        ]
        text = header(said, ["stackoverflow-shift"], name, method != "fedavg")
        if method == "fedavg":
            found[name] = text + f"rounds = 1500\nseeds = [0, 1, 2]\nevaluate_every = 50\n{SHIFT_POOLS}\n[method]\n{METHODS['fedavg']}\n"
        else:
            found[name] = text + f'like = "paper/shift-fedavg"\n\n[method]\n{METHODS[method]}\n'
    for method in ("periodic", "merged"):
        name = f"paper/figure3-{method}"
        said = [
            f"Figure 3, accuracy over rounds with domain-shifted pools, {SPOKEN[method]} against FedAvg.",
            "The paper: PeriodicCodist jumps after each codistillation and falls back; MergedCodist stays above FedAvg. No numbers.",
        ]
        text = header(said, ["stackoverflow-shift"], name, True)
        found[name] = text + f'like = "paper/shift-{method}"\nevaluate_every = 10\n'
        for size in FIGURE_4:
            name = f"paper/figure4-{method}-{size}"
            said = [
                f"Figure 4, CIFAR-100 with {size:,} of the 13,500 public images, |P_H| = 4700, {SPOKEN[method]}.",
                "The paper: 600 images suffice for most of the gain. Its figure averages the 25 best tuning runs; it prints no numbers.",
            ]
            text = header(said, ["cifar100"], name, True)
            found[name] = text + f'like = "paper/cifar-{method}-4700"\ntask = {{ public_size = {size} }}\n'
    for public in ("", "reddit", "movies"):
        for method in ("fedavg", "periodic", "merged") if not public else ("periodic", "merged"):
            name = f"study/stackexchange-{method}" + (f"-{public}" if public else "")
            where = {"": "in-domain", "reddit": "Reddit", "movies": "movie-review"}[public]
            said = [f"StackExchange, 8 sites, {where} public sentences, {SPOKEN[method]}: in the manner of Table 1, and not its data."]
            text = header(said, ["stackexchange", *([public] if public else [])], name, method != "fedavg")
            if name == "study/stackexchange-fedavg":
                found[name] = text + STUDY_BASE
                continue
            task = f'task = {{ public = "{public}" }}\n' if public else ""
            shorter = shorten(method)
            found[name] = f'{text}like = "study/stackexchange-fedavg"\n{task}\n[method]\n{shorter}\n'
    for method in ("fedavg", "periodic", "merged"):
        name = f"study/stackexchange-shift-{method}"
        said = [f"StackExchange with domain-shifted pools, {SPOKEN[method]}: in the manner of Table 2, and not its data."]
        said.append("The small model learns the answers of half of the authors, the large one the questions of the others.")
        text = header(said, ["stackexchange"], name, method != "fedavg")
        method_text = shorten(method)
        found[name] = f'{text}like = "study/stackexchange-fedavg"\n{STUDY_SHIFT}\n[method]\n{method_text}\n'
    return found | beyond()


def beyond() -> dict[str, str]:
    """{name: text} of the studies that go beyond the paper: what `fedcodist reproduce studies --budget small` runs, with settings that are
    not tuned; only the gated PeriodicCodist is as short as the config without a gate that it is to be compared with."""
    found = {}
    alone, shared = (IMAGES[row]["6300"][1] for row in (("fedavg", ""), ("merged", "in-domain")))
    merged = "distill = { steps = 32, batch = 64 }\n"
    for way, (alpha, words) in ALPHAS.items():
        name = f"study/cifar-merged-{way}"
        said = [f"CIFAR-100, |P_H| = 4700, MergedCodist {words}. Not in the paper."]
        said.append("What it asks: how much server cost can be saved at equal accuracy?")
        found[name] = header(said, ["cifar100"], name, True)
        found[name] += f'like = "paper/cifar-merged-4700"\n{SHORT}\n[method]\nalpha = {alpha}\n{merged}'
    for method in ("fedavg", "periodic", "merged"):
        name = f"study/cifar-three-pools-{method}"
        said = [f"CIFAR-100, models of a quarter, a half and the full width in three nested pools, {SPOKEN[method]}. Not in the paper."]
        found[name] = header(said, ["cifar100"], name, method != "fedavg")
        found[name] += f'like = "paper/cifar-{method}-4700"\n{SHORT}{QUARTER_POOLS}'
        found[name] += {
            "fedavg": "",
            "periodic": "\n[method]\nperiod = 40\ndistill = { steps = 200, batch = 64 }\n",
            "merged": f"\n[method]\n{merged}",
        }[method]
    for method, steps in (("periodic", 50), ("merged", 32)):
        name = f"study/stackexchange-shift-{method}-gated"
        said = [f"StackExchange with domain-shifted pools, {SPOKEN[method]}: teachers are weighted by their confidence. Not in the paper."]
        said.append("A larger gate listens to all of them more evenly: --set method.distill.gate=2.0")
        found[name] = header(said, ["stackexchange"], name, True)
        found[name] += f'like = "study/stackexchange-shift-{method}"\n\n[method]\n'
        found[name] += f"distill = {{ steps = {steps}, batch = 32, gate = 0.5 }}   # nats\n"
    name = "study/cifar-merged-6300-own-alpha"
    said = ["CIFAR-100, |P_H| = 6300, MergedCodist with an alpha for each pool: the stronger model listens less. Not in the paper."]
    said.append(f"With one alpha for both, the paper's large model falls from {alone:.2f} to {shared:.2f} % here.")
    found[name] = header(said, ["cifar100"], name, True)
    found[name] += f'like = "paper/cifar-merged-6300"\n{SHORT}\n[method]\nalpha = {{ small = 0.5, large = 0.9 }}\n{merged}'
    return found


def main() -> int:
    """Write or check."""
    wanted = configs()
    there = {
        str(path.relative_to(CONFIGS).with_suffix("")): path for part in ("paper", "study") for path in (CONFIGS / part).glob("*.toml")
    }
    stale = sorted(set(there) - set(wanted))
    for name, text in wanted.items():
        path = CONFIGS / f"{name}.toml"
        if not path.is_file() or path.read_text("utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, "utf-8")
    if "--check" in sys.argv:
        for name in stale:
            print(f"stale: configs/{name}.toml; run: make docs")
        return 1 if stale else 0
    for name in set(there) - set(wanted):
        there[name].unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
