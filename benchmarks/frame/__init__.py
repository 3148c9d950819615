"""What every benchmark shares: the run, its servers and workers, its tables and pictures."""
