"""What an app gives and asks for on either side: its model, its data, the options of a run, a template."""
