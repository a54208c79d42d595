"""Configs: what may be said (`schema`), how it is read (`reader`), what a result depends on (`digests`), and how it becomes an experiment
(`builder`)."""

from fedcodist.config.builder import assemble, build, load, warnings
from fedcodist.config.digests import digest, essential, identity, plain, twin
from fedcodist.config.reader import read, relations, shipped
from fedcodist.config.schema import ENGINES, HARMLESS, Choice, Config, PoolConfig

__all__ = [
    "ENGINES",
    "HARMLESS",
    "Choice",
    "Config",
    "PoolConfig",
    "assemble",
    "build",
    "digest",
    "essential",
    "identity",
    "load",
    "plain",
    "read",
    "relations",
    "shipped",
    "twin",
    "warnings",
]
