"""Rules whose clients train sub-models: who carries what, HeteroFL's mean over those who hold a number, and its identities."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import SHORT, TASK, finish, gauss_federation, same_bits

from fedcodist import config, keys, tree
from fedcodist.engines.serial import Serial
from fedcodist.fold import Sum
from fedcodist.folds.robust import Median
from fedcodist.methods import FedAvg, MergedCodist, PeriodicCodist
from fedcodist.models import CNN, MLP
from fedcodist.models.narrow import narrowed, prefix
from fedcodist.pool import Pool
from fedcodist.rule import Average as Plainly
from fedcodist.rules import FLANC, FedResCuE, HeteroFL, SplitMix
from fedcodist.rules.carriers import Carriers, Width
from fedcodist.rules.heterofl import OwnClasses
from fedcodist.rules.scaler import scaled
from fedcodist.rules.submodels import overlap, still, weights
from fedcodist.rules.widths import fixed
from fedcodist.runs import cost
from fedcodist.schedule import Constant
from fedcodist.servers import Average
from fedcodist.settings import SettingError
from fedcodist.train import Experiment, train
from fedcodist.types import Data, Examples, Model, PoolState, Reply
from fedcodist.work import LocalSGD

PLAIN = {"server": Average().optimizer(), "lr": Constant(1.0)}
WHOLE = (Width(1.0),)
HIGH = {"power": "high"}
BARE = {"scaler": False, "mask_labels": False, "skip_absent": False}


def closely(a, b, within=1e-6):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x) == pytest.approx(np.asarray(y), abs=within)


# -- who carries what --


def carried(*widths: Width, dynamic: bool = False, **given):
    pool = gauss_federation(("small",), rule=HeteroFL(widths, dynamic), **given).pools["small"]
    return pool if dynamic else fixed(pool)


def test_widths_take_in_the_pools_own_order():
    ids = list(reversed(TASK.clients))  # as a pool lists them, not as they are called
    clients = {c: TASK.clients[c] for c in ids}
    found = carried(Width(1.0, Carriers(take=3)), Width(0.5, Carriers(share=0.25)), Width(0.25), clients=clients)
    assert [found[c] for c in ids] == [0, 0, 0, 1, 1, 2, 2, 2]


def test_widths_by_attribute_and_by_name():
    capacity = {"capacity": {c: "high" if c in ("c01", "c05") else "low" for c in TASK.clients}}
    found = carried(Width(1.0, Carriers(where={"capacity": "high"})), Width(0.5), attributes=capacity)
    assert [c for c in found if found[c] == 0] == ["c01", "c05"]
    found = carried(Width(1.0, Carriers(ids=("c07",))), Width(0.5))
    assert [c for c in found if found[c] == 0] == ["c07"] and len(found) == 8


def test_widths_that_are_drawn_follow_their_shares_and_change_with_the_round():
    rule = HeteroFL((Width(1.0, Carriers(share=0.2)), Width(0.5), Width(0.25, Carriers(share=0.5))), dynamic=True)
    fed = gauss_federation(("small",), rule=rule)
    pool, ids = fed.pools["small"], [f"client{i}" for i in range(1000)]
    assert rule.shares(pool) == pytest.approx([0.2, 0.3, 0.5])
    one, two = (rule.places(fed, pool, ids, t, keys.root(0)) for t in (1, 2))
    assert np.bincount(list(one.values())) / 1000 == pytest.approx([0.2, 0.3, 0.5], abs=0.05)
    assert one != two and one["client3"] == rule.places(fed, pool, ["client3"], 1, keys.root(0))["client3"]


def test_what_widths_cannot_be_is_refused():
    for said, given in {
        "at least one width, each rate once": {"rule": HeteroFL((Width(0.5), Width(0.5)))},
        "got 5 clients without a width": {"rule": HeteroFL((Width(1.0, Carriers(take=3)),))},
        "only shares, which add up to at most 1": {"rule": HeteroFL((Width(1.0, Carriers(take=3)), Width(0.5)), dynamic=True)},
        "clients.where.power: got 'high'; allowed an attribute": {"rule": HeteroFL((Width(1.0, Carriers(where=HIGH)), Width(0.5)))},
        "small.fold: got Median; allowed mean, which heterofl takes number by number": {"rule": HeteroFL(), "fold": Median()},
    }.items():
        with pytest.raises(SettingError, match=said):
            gauss_federation(("small",), **given)
    bare = Model(lambda key: {"w": jnp.zeros(2)}, lambda params, x, key=None: x @ params["w"])
    (problem,) = HeteroFL().problems(Pool("p", bare, TASK.clients, 3))
    assert (
        str(problem) == "pools.p.model: got a model without sub-models; allowed one with `narrow` and `head` for heterofl: cnn, lstm, mlp"
    )


# -- HeteroFL --


def test_the_mean_over_those_who_hold_a_number_by_hand():
    """Anna (weight 1) holds a whole 2x2 matrix, Bert (weight 3) its corner, Carl (weight 2) its left column, without the class of row 2."""
    model = Model(lambda key: {"out": jnp.zeros((2, 2))}, lambda params, x, key=None: x, head="out")
    whole, corner = (narrowed(model, {"out": prefix(*shape)}) for shape in ((2, 2), (1, 1)))
    wide = {"out": jnp.zeros((2, 2))}
    held = [(whole, (jnp.float32(1), jnp.float32(1))), (corner, (jnp.float32(3), jnp.float32(3)))]
    share = weights(wide, held, "out")
    assert share["out"].tolist() == [[4, 1], [1, 1]]
    sums = [(whole, {"out": jnp.array([[1.0, 2.0], [3.0, 4.0]])}), (corner, {"out": 3 * jnp.array([[5.0]])})]
    assert overlap(wide, sums, share)["out"].tolist() == [[4, 2], [3, 4]]  # (1 * 1 + 3 * 5) / 4
    classes = (jnp.float32(2), jnp.array([2.0, 0.0]))  # nobody has the second class
    assert weights(wide, [(whole, classes)], "out")["out"].tolist() == [[2, 0], [2, 0]]


def test_numbers_that_nobody_held_stay_and_so_does_their_momentum():
    touched = {"w": jnp.array([True, False])}
    before = PoolState({"w": jnp.array([1.0, 2.0])}, ({"w": jnp.array([0.1, 0.2])}, jnp.int32(1)), ())
    after = PoolState({"w": jnp.array([3.0, 4.0])}, ({"w": jnp.array([0.3, 0.4])}, jnp.int32(2)), ())
    kept = still(before, after, touched)
    assert kept.params["w"].tolist() == [3, 2] and kept.opt[0]["w"].tolist() == pytest.approx([0.3, 0.2]) and int(kept.opt[1]) == 2


def test_with_one_rate_heterofl_is_fedavg_to_the_bit():
    rules = (HeteroFL(WHOLE, mask_labels=False, skip_absent=False), None)
    feds = [gauss_federation(**({"rule": rule} if rule else {})) for rule in rules]
    one, plain = (finish(fed, FedAvg(), rounds=3) for fed in feds)
    for pool in plain.state:
        assert same_bits(one.state[pool][:2], plain.state[pool][:2]) and one.info[pool]["grad_norm"] == plain.info[pool]["grad_norm"]
    assert cost.of_rounds(feds[0], FedAvg(), [one.info]) == cost.of_rounds(feds[1], FedAvg(), [plain.info])
    assert list(one.models) == list(plain.models)


def test_a_part_learns_as_the_masked_whole_does():
    model = MLP((6,)).build((4,), 3)
    sub, x = model.narrow(0.5), jnp.asarray(TASK.public.x[:5])
    part = sub.cut(model.init(keys.root(1)))

    def loss(model, params):
        return (model.apply(params, x, None) ** 2).sum()

    of_part = jax.grad(lambda p: loss(sub.model, p))(part)
    of_whole = jax.grad(lambda p: loss(model, p))(sub.paste(tree.zeros(model.init(keys.root(1))), part))
    closely(of_part, sub.cut(of_whole), 1e-5)


def test_the_scaler_divides_what_every_hidden_layer_gives():
    model = MLP((4, 2)).build((3,), 3)
    params, x = model.init(keys.root(0)), jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32))
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    h = x
    for layer in ("dense0", "dense1"):
        h = jax.nn.relu((h @ params[layer]["w"] + params[layer]["b"]) / 0.5)
    want = h @ params["dense2"]["w"] + params["dense2"]["b"]
    closely(scaled(model, 0.5).apply(params, x, None), want, 1e-5)
    assert scaled(model, 1.0) is model and scaled(model, 0.5) is scaled(model, 0.5)
    spec = scaled(model, 0.5).spec
    assert spec.part.build(spec.shape, spec.classes) is scaled(model, 0.5)  # a device can build it from the text


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def reference(params, examples, rate, units, lr):
    """A client's gradient, before minus after one step on all its rows, of an MLP with one hidden layer: with scaler and masked labels."""
    (w, b), (v, c) = ((params[k]["w"], params[k]["b"]) for k in ("dense0", "dense1"))
    w, b, v = w[:, :units], b[:units], v[:units]
    own = np.isin(np.arange(len(c)), examples.y)
    before = (examples.x @ w + b) / rate
    h = np.maximum(before, 0)
    z = np.where(own, h @ v + c, 0.0)
    error = (softmax(z) - np.eye(len(c))[examples.y]) / len(examples.y) * own  # a logit that is set to 0 has no gradient
    back = error @ v.T * (before > 0) / rate
    return lr * examples.x.T @ back, lr * back.sum(0), lr * h.T @ error, lr * error.sum(0), own


def test_a_round_of_heterofl_is_that_of_its_equations():
    """Three clients of an MLP with 4 hidden units, two of which carry 2 of them; nobody has the last class."""
    rng = np.random.default_rng(1)
    labels = {"a": [0, 1, 1], "b": [0, 0], "c": [1, 0, 1, 0]}
    clients = {c: Examples(rng.normal(size=(len(y), 4)).astype(np.float32), np.array(y, np.int32)) for c, y in labels.items()}
    rule = HeteroFL((Width(1.0, Carriers(ids=("a",))), Width(0.5)))
    work = LocalSGD(lr=0.5, batch=10)
    fed = gauss_federation(("small",), rule=rule, clients=clients, cohort=3, work=work, **PLAIN)
    before = jax.tree.map(np.asarray, fed.init(keys.root(3))["small"].params)
    state, grads, info = fed.gradients(fed.init(keys.root(3)), 1, keys.root(3))
    after = fed.step(state, grads, 1)["small"].params

    sums = {k: [np.zeros_like(before[k][p]) for p in "wb"] for k in before}
    held = {k: [np.zeros_like(before[k][p]) for p in "wb"] for k in before}
    for client, examples in clients.items():
        units, n = (4, 3) if client == "a" else (2, len(examples.y))
        w, b, v, c, own = reference(before, examples, units / 4, units, 0.5)
        for layer, place, value in (("dense0", 0, w), ("dense0", 1, b)):
            sums[layer][place][..., :units] += n * value
            held[layer][place][..., :units] += n
        sums["dense1"][0][:units] += n * v
        held["dense1"][0][:units] += n * own
        sums["dense1"][1] += n * c
        held["dense1"][1] += n * own
    for layer in before:
        for place, name in enumerate("wb"):
            want = before[layer][name] - sums[layer][place] / np.maximum(held[layer][place], 1)
            assert np.asarray(after[layer][name]) == pytest.approx(want, abs=1e-6)
    assert not np.asarray(grads["small"]["dense1"]["w"])[:, 2].any() and info["small"]["trained"] == {"1": 3, "0.5": 6}


def test_a_client_without_a_class_says_nothing_of_its_row():
    work = OwnClasses(LocalSGD(lr=1.0, batch=2), True, True)
    model = MLP((2,)).build((4,), 3)
    data = Data(jnp.ones((3, 4)), jnp.array([2, 2, 0]), jnp.int32(2))  # the third row is padding
    (grad, own), weight = work(model, TASK.objective, model.init(keys.root(0)), data, keys.root(0))[:2]
    assert own.tolist() == [0, 0, 1] and float(weight) == 2
    assert not np.asarray(grad["dense1"]["w"])[:, :2].any() and np.asarray(grad["dense1"]["b"])[2] != 0


ONE_WIDE = HeteroFL((Width(1.0, Carriers(take=1)), Width(0.5)), **BARE)


def narrow_rounds(steps):
    """(before, after) of rounds in which only narrow clients were asked."""
    return [(a, b) for a, b in itertools.pairwise(steps) if set(b.info["small"]["trained"]) == {"0.5"}]


def test_under_adam_nothing_moves_that_only_absent_clients_hold_unless_a_teacher_moves_it():
    given = {"rule": ONE_WIDE, "cohort": 2, "lr": Constant(0.05)}
    for method, moves in ((FedAvg(), False), (MergedCodist(Constant(0.5), SHORT), True)):
        steps = list(train(Experiment(gauss_federation(("small", "large"), **given), method, 6)))
        found = narrow_rounds(steps)
        assert found
        for a, b in found:
            old, new = (np.asarray(step.state["small"].params["dense0"]["w"]) for step in (a, b))
            assert not np.array_equal(old[:, :2], new[:, :2])
            assert np.array_equal(old[:, 2:], new[:, 2:]) != moves


def test_sub_widths_are_models_of_their_own():
    step = finish(gauss_federation(rule=HeteroFL()), MergedCodist(Constant(0.5), SHORT), rounds=2)
    assert list(step.models) == ["small", "small@0.5", "large", "large@0.5"] == list(step.evaluate())
    model, params = step.models["large@0.5"]
    sub = gauss_federation().pools["large"].model.narrow(0.5)
    assert same_bits(params, sub.cut(step.state["large"].params)) and model is scaled(sub.model, 0.5)
    plain = finish(gauss_federation(rule=HeteroFL(scaler=False)), FedAvg(), rounds=1)
    assert plain.models["large@0.5"].model is sub.model


def test_a_narrow_question_costs_what_it_costs():
    """The paper's CNN: bytes are those of 410,084 and 109,348 numbers, operations those of the small CNN itself."""
    from fedcodist.objectives import Classify, Images
    from fedcodist.task import Task
    from fedcodist.types import Split

    rng = np.random.default_rng(0)
    clients = {f"c{i}": Examples(np.zeros((4, 32, 32, 3), np.uint8), rng.integers(0, 100, 4).astype(np.int32)) for i in range(4)}
    rows = Split(*clients["c0"])
    task = Task("images", Classify(Images()), clients, Examples(rows.x), rows, rows, 100)
    wide = CNN((32, 64, 64), (128, 256)).build((24, 24, 3), 100)
    built = {"small": CNN().build((24, 24, 3), 100), "large": wide}
    rule = HeteroFL((Width(1.0, Carriers(take=1)), Width(0.5)), **BARE)
    pools = {name: Pool(name, model, clients, 4, rule=rule if name == "large" else Plainly()) for name, model in built.items()}
    fed = dataclasses.replace(gauss_federation(), task=task, pools=pools)
    assert rule.expects(fed, pools["large"])["client_bytes"] == 2 * 4 * (410_084 + 3 * 109_348)
    info = {"large": {"clients": 4, "examples": 16, "trained": {"1": 4, "0.5": 12}, "client_bytes": 7}}
    found = cost.of_rounds(fed, FedAvg(), [info])
    assert found["client_flops"]["large"] == 4 * cost.training_flops(fed, "large") + 12 * cost.training_flops(fed, "small")
    assert found["client_bytes"]["large"] == 7


def test_the_bytes_of_a_round_are_those_of_its_questions():
    rule = HeteroFL((Width(1.0, Carriers(take=1)), Width(0.5)), **BARE)
    fed = gauss_federation(("small",), rule=rule, cohort=8)
    info = finish(fed, FedAvg(), rounds=1).info["small"]
    size = tree.size(fed.pools["small"].shapes), tree.size(fed.pools["small"].model.narrow(0.5).model.init(keys.root(0)))
    assert info["client_bytes"] == 2 * 4 * (size[0] + 7 * size[1]) == cost.expected(fed, FedAvg(), 1)["client_bytes"]["small"]


def test_sums_are_not_divided():
    fold = Sum()
    total = None
    for value, weight in ((1.0, 2.0), (3.0, 4.0)):
        reply = Reply({"w": jnp.float32(value)}, jnp.float32(weight), {"loss": jnp.float32(value)})
        total = fold.add(fold.zero(reply) if total is None else total, reply)
    folded = fold.done(total, None, keys.root(0))
    assert float(folded.value["w"]) == 14 and float(folded.info["loss"]) == pytest.approx(14 / 6) and float(folded.weight) == 6


PERIODIC, MERGED = PeriodicCodist(2, SHORT), MergedCodist(Constant(0.5), SHORT)
RULES_UNDER_TEST = (HeteroFL(), SplitMix(), FedResCuE(loss=0.2), FLANC(weight=0.01))  # FLANC's default is for wide layers
MORE = pytest.mark.long  # the same again for other rules, compilation and all


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        pytest.param(method, rule, marks=() if (method, rule) in ((MERGED, HeteroFL()), (PERIODIC, SplitMix())) else MORE)
        for method in (PERIODIC, MERGED)
        for rule in RULES_UNDER_TEST
    ],
    ids=lambda part: type(part).kind,
)
def test_sub_models_under_codistillation(method, rule):
    """A resumed run is a straight one, and the engines agree, in the round after a lesson too."""
    steps = list(train(Experiment(gauss_federation(rule=rule), method, 3)))
    assert any("codistilled" in step.info["small"] for step in steps)
    resumed = list(train(Experiment(gauss_federation(rule=rule), method, 3), steps[1].state, after=2))[-1]
    assert same_bits(resumed.state, steps[-1].state) and resumed.info == steps[-1].info
    closely(finish(gauss_federation(rule=rule, engine=Serial()), method, rounds=3).state, steps[-1].state, 1e-3)


# -- from a config to a table --


def test_a_config_with_sub_widths_runs_and_all_its_models_are_compared(tmp_path):
    from fedcodist import runs
    from fedcodist.reports import compare
    from fedcodist.runs import session

    made = config.load("quick/toy-heterofl", ["rounds=2", "pools.wide.model.hidden=[8]"])
    assert made.federation.pools["wide"].rule.widths == (Width(1.0, Carriers(take=4)), Width(0.5))
    events = list(session.perform(made, tmp_path))
    result = events[-1].result
    assert set(result["test"]) == set(result["held_out"]) == set(result["parameters"]) == {"wide", "wide@0.5"}
    assert 0 < result["parameters"]["wide@0.5"] < result["parameters"]["wide"]
    rows = compare.results([runs.read(events[-1].path)])
    assert [row["pool"] for row in rows if row["domain"] == "all"] == ["wide@0.5", "wide"]
