"""Flower's clients, in a module of their own: Ray's workers then import it, and what is cached here lives as long as they do."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional as F

from benches import workload as w
from benches.peers import torch_net as net

client_app = ClientApp()
data = lru_cache(maxsize=None)(net.client)


@lru_cache
def network(size: str) -> net.CNN:
    """One model a Ray worker, used for all its clients."""
    torch.set_num_threads(1)
    return net.CNN(size)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of one client."""
    model = network(str(message.content["config"]["size"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    sgd = torch.optim.SGD(model.parameters(), lr=w.CLIENT_LR)
    x, y = data(int(context.node_config["partition-id"]))
    total = torch.zeros(())
    for rows in net.batches(len(x)):
        loss = F.cross_entropy(model(net.see(x[rows])), y[rows])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        total += loss.detach() * len(rows)
    metrics = MetricRecord({"loss": total.item() / len(x), "num-examples": len(x)})
    return Message(content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
