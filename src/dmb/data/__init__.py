"""Data sets of tokens: built in, or from the user's own files."""

from dmb.data.base import Batch as Batch
from dmb.data.base import DataSet as DataSet
from dmb.data.base import Rows as Rows
from dmb.data.base import Split as Split
from dmb.data.base import Stream as Stream
from dmb.data.codecs import Bytes as Bytes
from dmb.data.codecs import Characters as Characters
from dmb.data.codecs import Codec as Codec
from dmb.data.codecs import Columns as Columns
from dmb.data.codecs import Grid as Grid
from dmb.data.codecs import Text as Text
from dmb.data.codecs import Tokenizer as Tokenizer
from dmb.data.home import data_home as data_home
from dmb.data.loading import BUILT_IN as BUILT_IN
from dmb.data.loading import load as load
from dmb.data.sources.array import array as array
from dmb.data.sources.digits import digits as digits
from dmb.data.sources.markov import markov as markov
from dmb.data.sources.markov import markov_bits as markov_bits
from dmb.data.sources.pydocs import pydocs as pydocs
from dmb.data.sources.table import table as table
from dmb.data.sources.text import text as text
from dmb.data.sources.text8 import prepare_text8 as prepare_text8
from dmb.data.sources.text8 import text8 as text8
