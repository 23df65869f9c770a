"""Codecs: what tokens mean."""

from dmb.data.codecs.base import Codec as Codec
from dmb.data.codecs.columns import Columns as Columns
from dmb.data.codecs.grid import Grid as Grid
from dmb.data.codecs.picture import ImageCodec as ImageCodec, Picture as Picture
from dmb.data.codecs.records import Fasta as Fasta, JsonLines as JsonLines, Records as Records, Smiles as Smiles
from dmb.data.codecs.text import Bytes as Bytes, Characters as Characters, Text as Text
from dmb.data.codecs.tokenizer import Tokenizer as Tokenizer
from dmb.data.codecs.views import Images as Images, Lines as Lines, Rows as Rows, View as View
