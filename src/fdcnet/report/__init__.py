"""The report on one or several runs: tables, curves and overlays on one page that needs nothing but itself."""

from fdcnet.inference.drawing import overlay
from fdcnet.report.page import write_report
from fdcnet.report.tables import results_table, summary_table

__all__ = ["overlay", "results_table", "summary_table", "write_report"]
