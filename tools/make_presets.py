"""Write the configs of the paper's tables and figures and of the StackExchange study, or with --check fail when they are stale.

The numbers are the paper's own (Table 1 and Table 2: test accuracy in percent, small and large model). The paper does not print the rates,
temperatures and weights that it tuned: those in the base configs are starting points, and each header says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

CONFIGS = Path(__file__).parent.parent / "fedcodist/configs"

METHODS = {
    "fedavg": 'kind = "fedavg"',
    "periodic": 'kind = "periodic"\nperiod = 200\ndistill = { steps = 200, batch = 128 }',
    "merged": 'kind = "merged"\nalpha = 0.5\ndistill = { steps = 32, batch = 128 }',
}
SPOKEN = {"fedavg": "FedAvg", "periodic": "PeriodicCodist", "merged": "MergedCodist"}
UNTUNED = "# The paper tunes rates, temperatures and weights and does not print them; these are starting points, not its values."

CIFAR_SIZES = {"3100": 31, "4700": 47, "6300": 63}
CIFAR = {  # (method, public): {|P_H|: (small, large)}
    ("fedavg", ""): {"3100": (31.84, 24.76), "4700": (31.84, 30.57), "6300": (31.84, 35.10)},
    ("periodic", ""): {"3100": (33.95, 31.09), "4700": (34.36, 35.08), "6300": (35.68, 37.20)},
    ("merged", ""): {"3100": (32.86, 31.98), "4700": (33.86, 33.15), "6300": (33.78, 33.96)},
    ("periodic", "cifar10"): {"3100": (33.75, 25.03), "4700": (34.02, 30.53), "6300": (33.37, 34.27)},
    ("merged", "cifar10"): {"3100": (33.02, 25.83), "4700": (33.45, 31.02), "6300": (33.03, 33.47)},
}
STACK_SIZES = {"143k": 342, "296k": 684, "612k": 1369}
STACK = {
    ("fedavg", ""): {"143k": (26.29, 24.87), "296k": (26.29, 26.23), "612k": (26.29, 27.51)},
    ("periodic", ""): {"143k": (25.70, 26.26), "296k": (25.95, 26.68), "612k": (25.73, 27.06)},
    ("merged", ""): {"143k": (26.42, 26.63), "296k": (26.50, 26.72), "612k": (26.66, 27.55)},
    ("periodic", "c4"): {"143k": (25.72, 25.79), "296k": (25.57, 26.50), "612k": (25.77, 27.18)},
    ("merged", "c4"): {"143k": (26.55, 25.52), "296k": (26.51, 26.43), "612k": (26.59, 27.67)},
}
SHIFT = {  # answers, questions, mixed: (small, large) each
    "fedavg": ((26.00, 24.79), (22.62, 30.34), (24.51, 27.25)),
    "periodic": ((25.56, 24.82), (22.51, 30.23), (24.21, 27.23)),
    "merged": ((25.50, 25.29), (27.65, 30.75), (26.45, 27.70)),
}
FIGURE_4 = (600, 1_350, 3_000, 6_750, 13_500)  # the paper names 600 and the whole; the others are ours

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
PREPARE = {
    "cifar": ["fedcodist data prepare cifar100 --from PATH"],
    "cifar10": ["fedcodist data prepare cifar10 --from PATH"],
    "stack": ["fedcodist data prepare stackoverflow --from PATH"],
    "c4": ["fedcodist data prepare c4 --from PATH"],
    "shift": ["fedcodist data prepare stackoverflow --name stackoverflow-shift --set clients=85000 --from PATH"],
    "study": [
        "fedcodist data prepare text --name stackexchange --set min_examples=10 --set held_out_size=5000 --set test_size=10000 "
        "--from stackexchange-sentences.tsv"
    ],
    "reddit": [
        "fedcodist data prepare text --name reddit --set 'client=\"\"' --set vocabulary=stackexchange --from reddit2013-first-sentences.tsv"
    ],
    "movies": [
        "fedcodist data prepare text --name movies --set 'client=\"\"' --set vocabulary=stackexchange --from movie-reviews-sentences.tsv"
    ],
}


def header(lines: list[str], needs: list[str], name: str, twin: bool) -> str:
    """What it reproduces, the paper's numbers, and the commands."""
    wrapped = [*(f"# {line}" for line in lines), "#", UNTUNED]
    wrapped += [f"# First: {command}" for need in needs for command in PREPARE[need]]
    wrapped.append(f"# Run it: fedcodist run {name}{' --twin' if twin else ''}")
    return "\n".join(wrapped) + "\n"


def cells(prefix: str, table: dict, sizes: dict[str, int], base: str, unit: str, need: str) -> dict[str, str]:
    """One config for every cell of one half of Table 1."""
    middle = list(sizes)[1]
    base_name = f"paper/{prefix}-fedavg-{middle}"
    found = {}
    for (method, public), numbers in table.items():
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
    found = cells("cifar", CIFAR, CIFAR_SIZES, CIFAR_BASE, "CIFAR-100", "cifar")
    found |= cells("stackoverflow", STACK, STACK_SIZES, STACK_BASE, "Stack Overflow", "stack")
    for method, numbers in SHIFT.items():
        name = f"paper/shift-{method}"
        pairs = zip(("answers", "questions", "mixed"), numbers, strict=True)
        said = [
            f"Table 2, domain-shifted pools on Stack Overflow, {SPOKEN[method]}: the small model learns answers, the large one questions.",
            "The paper: " + "; ".join(f"{domain} small {s:.2f}, large {large:.2f}" for domain, (s, large) in pairs) + " % test accuracy.",
        ]
        text = header(said, ["shift"], name, method != "fedavg")
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
        text = header(said, ["shift"], name, True)
        found[name] = text + f'like = "paper/shift-{method}"\nevaluate_every = 10\n'
        for size in FIGURE_4:
            name = f"paper/figure4-{method}-{size}"
            said = [
                f"Figure 4, CIFAR-100 with {size:,} of the 13,500 public images, |P_H| = 4700, {SPOKEN[method]}.",
                "The paper: 600 images suffice for most of the gain. Its figure averages the 25 best tuning runs; it prints no numbers.",
            ]
            text = header(said, ["cifar"], name, True)
            found[name] = text + f'like = "paper/cifar-{method}-4700"\ntask = {{ public_size = {size} }}\n'
    for public in ("", "reddit", "movies"):
        for method in ("fedavg", "periodic", "merged") if not public else ("periodic", "merged"):
            name = f"study/stackexchange-{method}" + (f"-{public}" if public else "")
            where = {"": "in-domain", "reddit": "Reddit", "movies": "movie-review"}[public]
            said = [f"StackExchange, 8 sites, {where} public sentences, {SPOKEN[method]}: in the manner of Table 1, and not its data."]
            text = header(said, ["study", *([public] if public else [])], name, method != "fedavg")
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
        text = header(said, ["study"], name, method != "fedavg")
        method_text = shorten(method)
        found[name] = f'{text}like = "study/stackexchange-fedavg"\n{STUDY_SHIFT}\n[method]\n{method_text}\n'
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
