"""What is learned, as pure functions for compiled programs: how rows become inputs, the loss of a row, the sums behind every metric."""

from fedcodist.objectives.classify import Classify
from fedcodist.objectives.images import Images
from fedcodist.objectives.next_token import NextToken
from fedcodist.registry import Registry

OBJECTIVES = Registry("objectives", Classify, NextToken)

__all__ = ["OBJECTIVES", "Classify", "Images", "NextToken"]
