"""Natural tails with natural clients: which method, loss and correction afterwards is best on each."""
