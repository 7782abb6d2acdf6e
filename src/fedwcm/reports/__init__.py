"""What a run or a comparison shows: a page to look at, tables, and figures for a paper."""
