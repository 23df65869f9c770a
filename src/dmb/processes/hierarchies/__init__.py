"""Who lies below whom: the states of a process on a line, or on a tree.

Every node of a hierarchy may have a clock. When it rings, whatever lies strictly below the node is lifted to it. The
closed forms of a bridge need sums over all nodes above a state, sums over all nodes below it, and the path to the top.
Everything is in tokens.
"""

from dmb.processes.hierarchies.base import Hierarchy as Hierarchy
from dmb.processes.hierarchies.line import Line as Line
from dmb.processes.hierarchies.tree import Tree as Tree
