"""The parent: what works here, launches and their runs, resuming. Never loads MPI, torch or CUDA itself."""
