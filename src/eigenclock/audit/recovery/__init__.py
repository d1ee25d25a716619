"""L from scores alone: probed lags, the mode of each block, the bias beside them, and the recipe that gives the same scores."""
