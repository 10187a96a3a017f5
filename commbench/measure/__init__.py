"""What runs on every rank. Start reading at `engine.run_rank`."""
