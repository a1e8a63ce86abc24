"""Network care that faces and clients share."""
