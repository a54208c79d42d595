"""Reports on recorded runs: comparisons, tables, plots, one HTML page, exports."""
