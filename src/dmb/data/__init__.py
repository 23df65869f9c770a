"""Data sets of tokens: built in, or from the user's own files."""

from dmb.data.base import DataSet as DataSet
from dmb.data.cache import data_home as data_home
from dmb.data.codecs import (
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
from dmb.data.loading import BUILT_IN as BUILT_IN, Kind as Kind, kind_of as kind_of, load as load
from dmb.data.sources.array import array as array
from dmb.data.sources.built_in import (
    digits as digits,
    markov as markov,
    markov_bits as markov_bits,
    pydocs as pydocs,
)
from dmb.data.sources.cifar10 import cifar10 as cifar10, prepare_cifar10 as prepare_cifar10
from dmb.data.sources.images import images as images
from dmb.data.sources.records import records as records
from dmb.data.sources.table import table as table
from dmb.data.sources.text import text as text
from dmb.data.sources.text8 import prepare_text8 as prepare_text8, text8 as text8
from dmb.data.splits import Batch as Batch, Rows as Rows, Split as Split, Stream as Stream
