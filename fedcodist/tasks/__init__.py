"""Tasks by name: what is learned, and from what data. Each is a frozen dataclass whose `load` gives a Task, or raises DataError."""

from fedcodist.registry import Registry
from fedcodist.tasks.arrays import Arrays
from fedcodist.tasks.cifar100 import Cifar100
from fedcodist.tasks.fashion import FashionImages
from fedcodist.tasks.stdlib_text import StdlibText
from fedcodist.tasks.text import Text
from fedcodist.tasks.toy import Toy

TASKS = Registry("tasks", Arrays, Cifar100, FashionImages, StdlibText, Text, Toy)

__all__ = ["TASKS", "Arrays", "Cifar100", "FashionImages", "StdlibText", "Text", "Toy"]
