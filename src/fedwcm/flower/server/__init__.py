"""The server's side: it finds clients, asks them, checks their answers and runs the rounds."""
