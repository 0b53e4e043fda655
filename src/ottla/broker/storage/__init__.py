"""The log of one partition (segments, indexes, tail cache, recovery, retention), and the journal that all logs
share."""
