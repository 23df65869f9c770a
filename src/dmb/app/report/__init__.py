"""Reports: a run folder as one self-contained HTML page."""

from dmb.app.report.page import write_report as write_report
