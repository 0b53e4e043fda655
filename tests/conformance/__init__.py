"""Widely used clients against a real broker process: records written by one client are read by all of them."""
