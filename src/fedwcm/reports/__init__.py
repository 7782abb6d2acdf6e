"""Reports about a run or a comparison: an HTML page, tables, and figures for a paper."""
