"""Reports: a run folder as one self-contained HTML page."""

from dmb.app.reports.page import write_report as write_report
