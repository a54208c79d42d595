"""What runs say: comparisons, tables, plots, one HTML page, exports."""
