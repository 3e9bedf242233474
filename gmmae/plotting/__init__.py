"""Figures and documents from plain arrays; with the planner's and the judge's figures the only place of matplotlib."""
