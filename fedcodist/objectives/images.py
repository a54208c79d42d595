"""How images are seen. Raw rows stay bytes, as they are stored, and are cropped, flipped, standardised and mixed inside the compiled
program, each image by its own draw (A2, A3, A18, A19; DEVIATION D6); what FedJAX does instead is a switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedcodist import native
from fedcodist.types import Array

Scale = Literal["image", "cifar", "fedjax"]
FLOORS = {"image": -0.5, "fedjax": 0.5}  # of an image's standard deviation: the number of its pixels to this power
CIFAR_MEAN, CIFAR_DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # CIFAR-10's, which FedJAX takes for CIFAR-100 too


@dataclass(frozen=True)
class Images:
    """How images are seen: a `size` x `size` crop (random in training, central in evaluation), flipped at random, standardised."""

    size: int = 24
    pad: int = 0  # zeros around the image before a random crop: 4 for the 32/VALID layout
    flip: bool = True
    public_flips: bool = True  # distillation's extra horizontal and vertical flips (A19)
    mixup_beta: float = 2.0  # of distillation's mixup, Beta(b, b) for each image (A18); 0 is off
    scale: Scale = "image"  # each image by itself; "cifar": by fixed means and deviations; "fedjax": as FedJAX's 24 x 24 variant (A2)
    per_batch: bool = False  # FedJAX's augmentation: one crop and one flip for the whole batch, never the last offset (A3)

    def inputs(self, x: Array, key: Any = None) -> Array:
        """[batch, size, size, channels] float32."""
        x, corner, flip = self._draw(x, key)
        if self.scale in FLOORS and native.fits_see(x, self.size):
            return native.see(x, corner, flip, self.size, (self.size**2 * x.shape[-1]) ** FLOORS[self.scale])
        return standardise(self._crop_and_flip(x, corner, flip), self.scale)

    def public_inputs(self, x: Array, key: Any = None) -> Array:
        """As `inputs`, then flipped both ways and mixed with other images of the batch."""
        x = self.inputs(x, key)
        if key is None:
            return x
        if self.public_flips:
            x = _flip(_flip(x, jax.random.fold_in(key, 2), axis=2), jax.random.fold_in(key, 3), axis=1)
        return mixup(x, jax.random.fold_in(key, 4), self.mixup_beta) if self.mixup_beta > 0 else x

    def _draw(self, x: Array, key: Any) -> tuple[Array, Array, Array]:
        """The images, padded in training; where each is cropped, [batch, 2]; and whether it is flipped, [batch]."""
        images = len(x)
        if key is None:
            centre = jnp.array([x.shape[1] - self.size, x.shape[2] - self.size]) // 2
            return x, jnp.broadcast_to(centre, (images, 2)), jnp.zeros(images, bool)
        x = jnp.pad(x, ((0, 0), (self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        draws, last = (1, 0) if self.per_batch else (images, 1)
        room = jnp.maximum(jnp.array([x.shape[1] - self.size + last, x.shape[2] - self.size + last], jnp.uint32), 1)
        bits = native.bits(jax.random.fold_in(key, 0), (draws, 3))  # one draw for all: on a CPU each is a tenth of a small step
        corner, coin = (bits[:, :2] % room).astype(jnp.int32), (bits[:, 2] >> 31 > 0) & self.flip
        return x, jnp.broadcast_to(corner, (images, 2)), jnp.broadcast_to(coin, images)

    def _crop_and_flip(self, x: Array, corner: Array, flip: Array) -> Array:
        # Whole rows are copied this way; a gather of pixels, with the flip in its columns, takes twice as long.
        shape = (self.size, self.size, x.shape[-1])
        x = jax.vmap(lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), shape))(x, corner)
        return jnp.where(flip[:, None, None, None], x[:, :, ::-1], x)


def standardise(x: Array, scale: Scale = "image") -> Array:
    """Each image to mean 0 and standard deviation 1, which is floored at 1/sqrt(pixels) so that a constant image gives zeros.

    `fedjax` floors it at sqrt(pixels), 41.6 grey levels for 24 x 24 colours; `cifar` takes the same means and deviations for all images.
    """
    x = x.astype(jnp.float32)
    if scale == "cifar":
        return (x / 255 - jnp.array(CIFAR_MEAN)) / jnp.array(CIFAR_DEVIATION)
    pixels = x.shape[1] * x.shape[2] * x.shape[3]
    centred = x - jnp.mean(x, (1, 2, 3), keepdims=True)
    deviation = jnp.sqrt(jnp.mean(centred**2, (1, 2, 3), keepdims=True))
    return centred / jnp.maximum(deviation, pixels ** FLOORS[scale])


def mixup(x: Array, key: Any, beta: float) -> Array:
    """lam x + (1 - lam) x', lam ~ Beta(beta, beta) for each image, x' a permutation of the batch. Inputs only: there are no labels."""
    partner = jax.random.permutation(jax.random.fold_in(key, 0), len(x))
    lam = _beta(jax.random.fold_in(key, 1), beta, len(x)).reshape(-1, *[1] * (x.ndim - 1))
    return lam * x + (1 - lam) * x[partner]


def _beta(key: Any, beta: float, n: int) -> Array:
    if float(beta).is_integer():  # the median of 2b - 1 uniforms is Beta(b, b): far cheaper than rejection sampling
        odd = 2 * int(beta) - 1
        return jnp.sort(jax.random.uniform(key, (n, odd)), -1)[:, odd // 2]
    return jax.random.beta(key, beta, beta, (n,))


def _flip(x: Array, key: Any, axis: int) -> Array:
    coin = jax.random.bernoulli(key, 0.5, (len(x), 1, 1, 1))
    return jnp.where(coin, jnp.flip(x, axis), x)
