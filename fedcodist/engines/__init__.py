"""Engines run the work of clients: they answer questions (types.Engine), and all of them agree on the result of a round.

`blocks` has the steps that they share: cut a cohort into blocks, pack their data, run a block, join the results, finish the answer.
"""

from fedcodist.engines.compiled import Compiled
from fedcodist.engines.ray import Ray
from fedcodist.engines.serial import Serial
from fedcodist.registry import Registry

ENGINES = Registry("engines", Compiled, Ray, Serial)
