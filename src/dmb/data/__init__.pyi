"""The names of this package; `__init__` imports each on first use."""

from .base import DataSet as DataSet
from .cache import data_home as data_home
from .codecs import (
    Bytes as Bytes,
    Characters as Characters,
    Codec as Codec,
    Columns as Columns,
    Grid as Grid,
    ImageCodec as ImageCodec,
    Picture as Picture,
    Records as Records,
    Text as Text,
    Tokenizer as Tokenizer,
)
from .kinds import Kind as Kind
from .loading import BUILT_IN as BUILT_IN, kind_of as kind_of, load as load
from .sources.array import array as array
from .sources.built_in import (
    digits as digits,
    markov as markov,
    markov_bits as markov_bits,
    pydocs as pydocs,
)
from .sources.cifar10 import cifar10 as cifar10, prepare_cifar10 as prepare_cifar10
from .sources.images import images as images
from .sources.records import records as records
from .sources.table import table as table
from .sources.text import text as text
from .sources.text8 import prepare_text8 as prepare_text8, text8 as text8
from .splits import Batch as Batch, Rows as Rows, Split as Split, Stream as Stream
