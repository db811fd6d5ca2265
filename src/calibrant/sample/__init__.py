"""Sample predictions, made from the synthetic source, whose truth is known; they are labelled as such."""
