"""A layer's config: values that JSON has no words for, and what a file may name of them.

What a file says is never called. `read` parses all that a layer's config names, checks all of it, and only then builds.
"""

from __future__ import annotations

from jaxbridge.layers.saving.pack import pack as pack
from jaxbridge.layers.saving.pack import pack_function as pack_function
from jaxbridge.layers.saving.reader import ANY as ANY
from jaxbridge.layers.saving.reader import BOOL as BOOL
from jaxbridge.layers.saving.reader import FLAG as FLAG
from jaxbridge.layers.saving.reader import KERAS as KERAS
from jaxbridge.layers.saving.reader import MAPPING as MAPPING
from jaxbridge.layers.saving.reader import NAMES as NAMES
from jaxbridge.layers.saving.reader import SEQUENCE as SEQUENCE
from jaxbridge.layers.saving.reader import VARIABLES as VARIABLES
from jaxbridge.layers.saving.reader import WORDS as WORDS
from jaxbridge.layers.saving.reader import Argument as Argument
from jaxbridge.layers.saving.reader import read as read
from jaxbridge.layers.saving.reader import unpack as unpack
