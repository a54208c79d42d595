"""The shortest way: a config that comes with the package, ten rounds, and how well each pool's model does on data it never saw."""

import fedcodist

for step in fedcodist.train(fedcodist.load("quick/toy")):
    scores = {pool: f"{metrics['all']['accuracy']:.1%}" for pool, metrics in step.evaluate("held_out").items()}
    print(f"round {step.t:2d}: held-out accuracy {scores}")
