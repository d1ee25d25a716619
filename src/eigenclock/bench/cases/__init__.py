"""The benchmarks, one file for each family."""
