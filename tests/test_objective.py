"""What a model sees of an image, and what is measured: by hand, and by counting draws.

Random crops and flips are tested from outside: an image of noise has no two equal crops, so what a draw did can be read off its result.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedcodist import keys
from fedcodist.objectives.calibration import BINS
from fedcodist.objectives.classify import Classify
from fedcodist.objectives.images import Images, _beta, mixup, standardise
from fedcodist.objectives.next_token import EOS, PAD, NextToken
from fedcodist.scores import argmax

KEY = keys.root(0)
NOISE = np.random.default_rng(0).integers(0, 256, (6, 6, 2), dtype=np.uint8)


def batch(image, n):
    return np.repeat(image[None], n, 0)


def plain(x):
    """Standardised with numpy."""
    x = np.asarray(x, np.float64)
    return (x - x.mean((1, 2, 3), keepdims=True)) / x.std((1, 2, 3), keepdims=True)


def which(seen, candidates):
    """How often each candidate image was seen; every image seen must be one of them."""
    candidates = plain(np.stack(candidates))
    distance = np.abs(np.asarray(seen)[:, None] - candidates[None]).max((2, 3, 4))  # [seen, candidates]
    assert (distance.min(1) < 1e-4).all()
    return np.bincount(distance.argmin(1), minlength=len(candidates))


def assert_even(counts):
    """Equal chances: every count within five standard deviations of its mean."""
    n, share = counts.sum(), 1 / len(counts)
    assert np.abs(counts - n * share).max() < 5 * (n * share * (1 - share)) ** 0.5, counts.tolist()


def crops(image, size):
    room = image.shape[0] - size + 1
    return [image[i : i + size, j : j + size] for i, j in itertools.product(range(room), repeat=2)]


def test_evaluation_sees_the_central_crop():
    x = np.stack([NOISE, NOISE[::-1]])
    for see in (
        Images(size=4).inputs,
        Images(size=4).public_inputs,
        Classify(Images(size=4)).inputs,
        Classify(Images(size=4)).public_inputs,
    ):
        assert np.asarray(see(x)) == pytest.approx(plain(x[:, 1:5, 1:5]), abs=1e-5)
    assert np.asarray(Images(size=6, pad=2).inputs(x)) == pytest.approx(plain(x), abs=1e-5)  # nothing to crop, and no zeros around it
    assert Images(size=5).inputs(x).shape == (2, 5, 5, 2)  # an odd rest: still inside


def test_every_crop_is_as_likely_and_inside():
    seen = Images(size=4, flip=False).inputs(batch(NOISE, 900), KEY)
    assert seen.dtype == jnp.float32
    assert_even(which(seen, crops(NOISE, 4)))  # the nine corners, all in one batch: each image has its own draw


def test_flips_are_left_to_right():
    seen = Images(size=4).inputs(batch(NOISE, 1800), KEY)
    both = [f for crop in crops(NOISE, 4) for f in (crop, crop[:, ::-1])]
    assert_even(which(seen, both))


def test_padding_puts_zeros_around_a_random_crop():
    padded = np.pad(NOISE, ((1, 1), (1, 1), (0, 0)))
    assert_even(which(Images(size=6, pad=1, flip=False).inputs(batch(NOISE, 900), KEY), crops(padded, 6)))


def test_public_images_are_flipped_both_ways():
    flips = [NOISE[::a, ::b] for a, b in itertools.product((1, -1), repeat=2)]
    off = {"size": 6, "mixup_beta": 0.0}
    assert_even(which(Images(**off).public_inputs(batch(NOISE, 800), KEY), flips))
    assert which(Images(flip=False, public_flips=False, **off).public_inputs(batch(NOISE, 50), KEY), flips).tolist() == [50, 0, 0, 0]
    sideways = which(Images(public_flips=False, **off).public_inputs(batch(NOISE, 800), KEY), flips)
    assert sideways[2:].tolist() == [0, 0]


def test_a_key_decides_every_draw():
    see, x = Images(size=4).public_inputs, batch(NOISE, 20)
    assert np.array_equal(see(x, KEY), see(x, KEY))
    assert not np.array_equal(see(x, KEY), see(x, keys.root(1)))


def test_standardise_by_hand():
    x = np.array([1.0, 3.0, 5.0, 7.0], np.float32).reshape(1, 2, 2, 1)
    assert np.asarray(standardise(x)).ravel() == pytest.approx(np.array([-3, -1, 1, 3]) / 5**0.5)
    # A deviation below 1/sqrt(pixels) counts as that much: here mean 7.25, deviation sqrt(3)/40 < 1/2.
    x = np.array([7.2, 7.2, 7.2, 7.3]).reshape(1, 2, 2, 1)
    assert np.asarray(standardise(x)).ravel() == pytest.approx(np.array([-0.05, -0.05, -0.05, 0.15]), abs=1e-5)
    assert not np.asarray(standardise(np.full((2, 4, 4, 3), 200, np.uint8))).any()  # zeros, not NaN
    assert not np.asarray(Images(size=3).inputs(np.full((2, 4, 4, 3), 200, np.uint8), KEY)).any()


def mixed(n, beta):
    """Of n images that are 1 at their own place: [image, place] after mixup, so that row i shows lam and the partner of image i."""
    return np.asarray(mixup(jnp.eye(n).reshape(n, n, 1, 1), KEY, beta)).reshape(n, n)


def test_mixup_is_a_convex_sum_with_a_permutation():
    out = mixed(400, 2.0)
    lam = out.diagonal()
    alone = lam > 1 - 1e-6  # whoever is its own partner stays as it is
    assert (out >= 0).all() and out.sum(1) == pytest.approx(np.ones(400), abs=1e-5)
    assert ((out > 0).sum(1) == np.where(alone, 1, 2)).all()
    partner = np.where(alone, np.arange(400), (out - np.diag(lam)).argmax(1))
    assert sorted(partner) == list(range(400))
    assert alone.sum() < 10 and len(np.unique(lam)) > 350  # a lam for each image, not for the batch


def test_mixup_draws_from_beta():
    lam = mixed(1500, 2.0).diagonal()
    lam = lam[lam < 1 - 1e-6]
    assert lam.mean() == pytest.approx(0.5, abs=0.03)
    assert lam.var() == pytest.approx(0.05, abs=0.007)


@pytest.mark.parametrize("beta", [1.0, 2.0, 3.0, 0.5])
def test_the_median_of_uniforms_is_beta(beta):
    ours, theirs = np.asarray(_beta(KEY, beta, 20_000)), np.asarray(jax.random.beta(jax.random.fold_in(KEY, 9), beta, beta, (20_000,)))
    assert ours.min() >= 0 and ours.max() <= 1
    assert ours.mean() == pytest.approx(0.5, abs=0.015)
    assert ours.var() == pytest.approx(1 / (4 * (2 * beta + 1)), rel=0.05)
    for power in (1, 2, 3, 4):
        assert (ours**power).mean() == pytest.approx((theirs**power).mean(), abs=0.015)
    assert np.quantile(ours, [0.05, 0.25, 0.75, 0.95]) == pytest.approx(np.quantile(theirs, [0.05, 0.25, 0.75, 0.95]), abs=0.02)


def test_mixup_is_the_last_of_the_public_steps_and_can_be_off():
    x = np.random.default_rng(1).integers(0, 256, (8, 6, 6, 2), dtype=np.uint8)
    on, off = (np.asarray(Images(size=6, mixup_beta=b).public_inputs(x, KEY)) for b in (2.0, 0.0))
    assert np.abs(off.std((1, 2, 3)) - 1).max() < 1e-4
    assert (on.std((1, 2, 3)) < 0.99).any()  # a sum of two standardised images is none itself
    assert np.asarray(mixup(jnp.asarray(off), jax.random.fold_in(KEY, 4), 2.0)) == pytest.approx(on, abs=1e-5)


def test_plain_rows_are_only_numbers():
    x = np.array([[1, 2], [3, 4]], np.int64)
    for seen in (Classify().inputs(x), Classify().inputs(x, KEY), Classify().public_inputs(x, KEY)):
        assert seen.dtype == jnp.float32 and seen.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert Classify().mask(x).tolist() == [1.0, 1.0]


def log(*rows):
    return jnp.log(jnp.array(rows))


def sums_of(objective, logits, y):
    return {name: np.asarray(value, np.float64).sum(0) for name, value in objective.measure(logits, y).items()}


def test_classification_by_hand():
    logits, y = log([0.7, 0.2, 0.1], [0.5, 0.3, 0.2]), jnp.array([0, 1])
    want = -np.log([0.7, 0.3])
    assert np.asarray(Classify().loss(logits, y)) == pytest.approx(want)
    assert np.asarray(Classify().loss(logits + 100.0, y)) == pytest.approx(want, rel=1e-3)  # logits need not be probabilities
    found = Classify().summarise(sums_of(Classify(), logits, y))
    assert found["accuracy"] == 0.5
    assert found["loss"] == pytest.approx(want.mean())


def test_calibration_by_hand():
    # Confidences 0.9, 0.9 and 0.62, in two of the 15 bins; the first is wrong. |1.8 - 1| + |0.62 - 1| over three rows.
    logits, y = log([0.9, 0.1], [0.1, 0.9], [0.62, 0.38]), jnp.array([1, 1, 0])
    assert Classify().summarise(sums_of(Classify(), logits, y))["calibration"] == pytest.approx((0.8 + 0.38) / 3)
    # Too sure in one bin and not sure enough in another do not cancel; a confidence of exactly 1 is in the last bin.
    sums = sums_of(Classify(), jnp.array([[1000.0, 0.0], [1000.0, 0.0], [0.0, 0.001]]), jnp.array([0, 1, 1]))
    assert sums["confidence_bins"][-1] == 2.0 and sums["correct_bins"][-1] == 1.0
    assert sums["correct_bins"].sum() == 2.0 and sums["confidence_bins"].shape == (BINS,)
    assert Classify().summarise(sums)["calibration"] == pytest.approx((1 + 0.5) / 3, abs=1e-3)


# Tokens: PAD 0, BOS 1, EOS 2, the words 3, 4, 5, and 6 for all others. Each position: its target, the model's first and second guess.
OOV = 6
TEXT = [
    [(3, 3, 4), (OOV, OOV, 4), (EOS, EOS, 3), (PAD, PAD, 3)],
    [(4, EOS, 4), (5, OOV, 5), (EOS, 3, EOS), (PAD, 3, 4)],
    [(3, OOV, 3), (EOS, EOS, 3), (PAD, 4, 3), (PAD, 4, 3)],
]


def text():
    y = np.array([[target for target, _, _ in row] for row in TEXT], np.int32)
    logits = np.full((3, 4, 7), -1.0, np.float32)
    for (i, row), j in itertools.product(enumerate(TEXT), range(4)):
        logits[i, j, row[j][1]], logits[i, j, row[j][2]] = 2.0, 1.0
    return logits, y


def test_three_accuracies_by_hand():
    objective = NextToken(oov=OOV)
    found = objective.summarise(sums_of(objective, *text()))
    # Five targets are words or OOV. If no special token is guessed, what stands behind EOS or OOV is right, and only OOV itself is not.
    assert found["accuracy"] == pytest.approx(4 / 5)
    # Guessing anything: the first 3 and the OOV.
    assert found["accuracy_no_eos"] == pytest.approx(2 / 5)
    # With the three EOS targets, two of which are right; PAD never counts, however well it is guessed.
    assert found["accuracy_nonpad"] == pytest.approx(4 / 8)
    chance = np.exp(2.0) / (np.exp(2.0) + np.exp(1.0) + 5 * np.exp(-1.0))  # of the first guess, everywhere
    assert found["calibration"] == pytest.approx(abs(8 * chance - 4) / 8, rel=1e-5)


def test_padding_has_no_part_in_the_loss():
    logits, y = text()
    objective = NextToken(oov=OOV)
    total = np.exp(2.0) + np.exp(1.0) + 5 * np.exp(-1.0)
    of_token = np.log(total) - np.take_along_axis(logits, y[..., None], -1)[..., 0]
    want = (of_token * (y != PAD)).sum(-1)
    assert np.asarray(objective.loss(logits, y)) == pytest.approx(want / 13.3, rel=1e-5)
    assert np.asarray(NextToken(OOV, scale=2.0).loss(logits, y)) == pytest.approx(want / 2.0, rel=1e-5)
    assert objective.summarise(sums_of(objective, logits, y))["loss"] == pytest.approx(want.sum() / 8, rel=1e-5)  # the mean over tokens
    grad = np.asarray(jax.grad(lambda z: objective.loss(z, y).sum())(jnp.asarray(logits)))
    assert not grad[y == PAD].any()
    assert (np.abs(grad[y != PAD]).max(-1) > 0).all()
    assert objective.mask(jnp.asarray(y)).tolist() == (y != PAD).astype(float).tolist()


def test_text_is_seen_as_it_is():
    x = np.array([[1, 3, 2, 0]], np.uint16)  # as a store keeps it
    for seen in (NextToken(OOV).inputs(x, KEY), NextToken(OOV).public_inputs(x, KEY)):
        assert seen.dtype == np.int32 and seen.tolist() == x.tolist()


def test_no_tokens_at_all_is_no_division_by_zero():
    objective = NextToken(OOV)
    found = objective.summarise(sums_of(objective, np.zeros((2, 3, 7), np.float32), np.zeros((2, 3), np.int32)))
    assert set(found.values()) == {0.0}


@pytest.mark.parametrize("make", [lambda: Classify(Images(size=4)), lambda: NextToken(OOV)])
def test_objectives_are_values(make):
    assert make() == make() and hash(make()) == hash(make())  # part of a compiled program's identity


@pytest.mark.parametrize("classes", [2, 511, 512, 513, 1000, 10_004])
def test_best_is_argmax(classes):
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(40, classes)).astype(np.float32)
    logits[:20] = np.round(logits[:20])  # ties: the first counts
    logits[0] = 0.0
    logits[1, -1] = logits[2, 0] = 99.0
    assert np.array_equal(np.asarray(argmax(logits)), logits.argmax(-1))
    assert np.array_equal(np.asarray(argmax(logits.reshape(4, 10, classes))), logits.reshape(4, 10, classes).argmax(-1))


def test_the_best_word_is_no_special_token():
    logits = np.zeros((1, 5, OOV + 1), np.float32)
    logits[0, :, [0, 1, 2, OOV]] = 9.0
    logits[0, :, 4] = 1.0
    y = np.full((1, 5), 4, np.int32)
    sums = NextToken(OOV).measure(jnp.asarray(logits), y)
    assert float(sums["correct"][0]) == 5 and float(sums["correct_no_eos"][0]) == 0
