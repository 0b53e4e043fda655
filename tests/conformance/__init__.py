"""The clients that people have, against a real broker process: what they write is what every one of them reads."""
