"""What a run or a comparison shows: tables and pictures."""
