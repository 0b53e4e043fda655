"""Sockets: frames in, replies out in order, limits and back-pressure, a clean end."""
