"""Reports: a run folder as one self-contained HTML page, or as a model card."""

from dmb.app.reports.card import write_card as write_card
from dmb.app.reports.page import write_report as write_report
