"""Codecs: what tokens mean."""

from dmb.data.codecs.base import Codec as Codec
from dmb.data.codecs.columns import Columns as Columns
from dmb.data.codecs.grid import Grid as Grid
from dmb.data.codecs.picture import ImageCodec as ImageCodec
from dmb.data.codecs.picture import Picture as Picture
from dmb.data.codecs.records import Fasta as Fasta
from dmb.data.codecs.records import JsonLines as JsonLines
from dmb.data.codecs.records import Records as Records
from dmb.data.codecs.records import Smiles as Smiles
from dmb.data.codecs.text import Bytes as Bytes
from dmb.data.codecs.text import Characters as Characters
from dmb.data.codecs.text import Text as Text
from dmb.data.codecs.tokenizer import Tokenizer as Tokenizer
from dmb.data.codecs.views import Images as Images
from dmb.data.codecs.views import Lines as Lines
from dmb.data.codecs.views import Rows as Rows
from dmb.data.codecs.views import View as View
