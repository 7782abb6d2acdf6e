"""The paper's tables and figures by name: what to run, what the paper has, and how both are set side by side."""
