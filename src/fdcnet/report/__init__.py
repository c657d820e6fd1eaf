"""Self-contained HTML reports about one run or several."""

from fdcnet.inference.drawing import overlay
from fdcnet.report.page import write_report
from fdcnet.report.tables import results_table, summary_table

__all__ = ["overlay", "results_table", "summary_table", "write_report"]
