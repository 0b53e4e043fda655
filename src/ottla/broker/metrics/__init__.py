"""Prometheus metrics of a broker, served at `/metrics` on a separate port.

Nothing here is on the write or read path. The broker counts plain numbers where events happen; a scrape formats them as
text, in slices, so that no client waits longer because of it.

    declared     every metric: name, kind, labels and one sentence; `docs/reference/metrics.md` is generated from it
    page         the text format
    of_*         collectors, one module for each part of a broker
    scrape       runs all collectors, in slices
    endpoint     a small HTTP server
    coordination a coordination store that measures its calls
"""
