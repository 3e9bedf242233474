"""Figures and documents from plain arrays; with the judge's figures the only place of matplotlib."""
