"""How replies combine: the mean, which is core (`fold.Mean`), and folds for clients that cannot be trusted."""

from fedcodist.fold import Mean
from fedcodist.folds.robust import Krum, Median, NormBound, TrimmedMean
from fedcodist.registry import Registry

FOLDS = Registry("folds", Mean, NormBound, Median, TrimmedMean, Krum)
