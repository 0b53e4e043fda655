"""Tests of real broker processes: kill -9, full and damaged disks, second starts on the same directory."""
