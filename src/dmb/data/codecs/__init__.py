"""Codecs: what tokens mean."""

from dmb.data.codecs.base import Cells as Cells, Codec as Codec, Images as Images, Lines as Lines, View as View
from dmb.data.codecs.columns import Columns as Columns
from dmb.data.codecs.images import Grid as Grid, ImageCodec as ImageCodec, Picture as Picture
from dmb.data.codecs.records import Fasta as Fasta, JsonLines as JsonLines, Records as Records, Smiles as Smiles
from dmb.data.codecs.text import Bytes as Bytes, Characters as Characters, Text as Text, Tokenizer as Tokenizer
