"""`fedwcm doctor`: what this machine is, and whether it computes correctly."""
