"""What a step costs and where: times per operator, per line of yours and per layer, on a CPU and on a GPU."""

from .profiler import Profiler as Profiler
from .rows import Row as Row
