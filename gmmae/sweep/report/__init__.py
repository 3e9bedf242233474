"""The report of a sweep: results, tables, figures and one page."""
