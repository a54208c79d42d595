"""TensorFlow Federated's side: its weighted FedAvg with a Keras model, client SGD and server Adam, on its default local executors."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_federated as tff

from benches import workload as w


def network(size: str) -> tf.keras.Model:
    """The paper's CNN."""
    (a, b, c), (d, e) = w.CNNS[size]
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((w.CROP, w.CROP, 3)),
            layers.Conv2D(a, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(b, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(c, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(d, activation="relu"),
            layers.Dense(e, activation="relu"),
            layers.Dense(w.CLASSES),
        ]
    )


def see(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A batch of images, each cropped and flipped by its own draw, then standardised."""
    rows = tf.shape(x)[0]
    corner = tf.random.uniform((rows, 2), 0, w.IMAGE - w.CROP + 1, tf.int32)
    across = tf.range(w.CROP)[None]
    across = tf.where(tf.random.uniform((rows, 1)) < 0.5, across[:, ::-1], across)
    x = tf.gather(x, corner[:, :1] + tf.range(w.CROP), axis=1, batch_dims=1)
    x = tf.gather(x, corner[:, 1:] + across, axis=2, batch_dims=1)
    return tf.image.per_image_standardization(tf.ensure_shape(x, (None, w.CROP, w.CROP, 3))), y


def main() -> None:
    """Answer the driver's turns."""
    work, threads = w.asked()
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.random.set_seed(0)

    def client(k: int) -> tf.data.Dataset:
        x, y = w.examples(k)
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(w.EXAMPLES).batch(w.BATCH).map(see)

    clients = [client(k) for k in range(work.clients)]

    def model() -> tff.learning.models.VariableModel:
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return tff.learning.models.from_keras_model(network(work.size), loss=loss, input_spec=clients[0].element_spec)

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(w.CLIENT_LR),
        server_optimizer_fn=tff.learning.optimizers.build_adam(w.SERVER_LR, epsilon=w.SERVER_EPS),
    )
    state = process.initialize()
    parameters = sum(int(tf.size(leaf)) for leaf in process.get_model_weights(state).trainable)

    def one_round() -> float:
        nonlocal state
        cohort = tf.random.shuffle(tf.range(work.clients))[: work.cohort].numpy()
        state, metrics = process.next(state, [clients[k] for k in cohort])
        return float(metrics["client_work"]["train"]["loss"])

    w.serve(one_round, parameters, {"tff": tff.__version__, "tensorflow": tf.__version__})


if __name__ == "__main__":
    main()
