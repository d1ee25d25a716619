"""What rules measure with: samples of scores, pairs of channels, claims of configs, causes of errors. It knows no rule."""
