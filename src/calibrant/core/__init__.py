"""What every room stands on: contracts, registry, spec strings, predictions, binning, numerics, errors."""
