"""What a broker tells Prometheus: `/metrics` on a port of its own.

Nothing here is on the way of a record. Brokers count plain numbers where things happen; somebody who asks for the page
makes them into text, in slices, so that no client waits longer for that.

    declared     every metric: name, kind, labels, one sentence. `docs/metrics.md` is made from it
    page         the text format
    of_*         what is read of a broker, one module a part of it
    scrape       all of them, in slices
    endpoint     a small HTTP server
    coordination a coordination store that counts its calls
"""
