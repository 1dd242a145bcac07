"""First in PYTHONPATH: as if matplotlib were not installed."""
raise ImportError("No module named 'matplotlib'")
