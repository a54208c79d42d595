"""Everything composed by hand, small enough to check: one round of MergedCodist beside the same arithmetic in plain numpy.

Two pools share two clients. `small` sees one feature, `large` sees two; both are softmax regression without a bias, from given weights.
Nothing is shuffled or augmented, so the round is a formula: local SGD, the weighted mean, two Adam steps of distillation, equation 2.
"""

import numpy as np

import fedcodist as fc

anna = fc.Examples(np.array([[1, 0], [0, 2], [1, 1]], np.float32), np.array([0, 1, 1], np.int32))
bert = fc.Examples(np.array([[2, -1]], np.float32), np.array([0], np.int32))
public = np.array([[1, 2], [-1, 1], [0, 1], [2, 2]], np.float32)
start = {"small": np.array([[0.5, -0.5]], np.float32), "large": np.array([[0.1, 0.2], [-0.3, 0.4]], np.float32)}
LR, BATCH, ALPHA, GAMMA, STUDENT_LR, TEMPERATURE = 0.5, 2, 0.6, 0.3, 0.05, 2.0

# -- with fedcodist --
model = fc.Model(init=lambda key: None, apply=lambda w, x, key=None: x[:, : len(w)] @ w)
rows = fc.Split(public, np.zeros(4, np.int32))
task = fc.Task("by hand", fc.Classify(), {"anna": anna, "bert": bert}, fc.Examples(public), rows, rows, classes=2)
work = fc.LocalSGD(lr=LR, batch=BATCH, shuffle=False, augment=False)
how = {"cohort": 2, "work": work, "learns": fc.Learns(lr=STUDENT_LR, self_weight=GAMMA), "teaches": fc.Teaches(TEMPERATURE)}
pools = {name: fc.Pool(name, model, task.clients, start=start[name], **how) for name in start}
distill = fc.Distiller(steps=2, batch=2, shuffle=False, augment=False)
experiment = fc.Experiment(fc.Federation(task, pools), fc.MergedCodist(fc.Constant(ALPHA), distill), rounds=1)
ours = {name: voice.params for name, voice in next(fc.train(experiment)).models.items()}


# -- with numpy --
def softmax(z):
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)


def by_hand(me, other):
    theta, mean = start[me].astype(np.float64), 0.0
    for x, y in (anna, bert):  # line 3: sum n_k (theta - theta_k) / sum n_k
        w, x = theta.copy(), x[:, : len(theta)]
        for b in range(0, len(x), BATCH):
            xb, yb = x[b : b + BATCH], np.eye(2)[y[b : b + BATCH]]
            w -= LR * xb.T @ (softmax(xb @ w) - yb) / len(xb)
        mean = mean + len(x) * (theta - w) / (len(anna.x) + len(bert.x))
    w, m, v = theta.copy(), 0.0, 0.0
    for k in (1, 2):  # lines 4-6: the target is the other's tempered words and a little of one's own; Adam
        seen = public[2 * k - 2 : 2 * k]
        x, q = seen[:, : len(w)], softmax(seen[:, : len(start[other])] @ start[other] / TEMPERATURE)
        q = (1 - GAMMA) * q + GAMMA * softmax(x @ theta)
        g = x.T @ (softmax(x @ w) - q) / len(x)  # the gradient of KL(q || student)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w -= STUDENT_LR * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-5)
    dist = theta - w  # line 7
    merged = ALPHA * mean + (1 - ALPHA) * dist * np.linalg.norm(mean) / np.linalg.norm(dist)  # line 8, equation 2
    return theta - merged  # line 9, plain averaging at learning rate 1


for me, other in (("small", "large"), ("large", "small")):
    expected = by_hand(me, other)
    print(f"{me}\n  by fedcodist {ours[me].ravel()}\n  by hand      {expected.ravel()}")
    assert np.allclose(ours[me], expected, atol=1e-6), me
print("they agree")
