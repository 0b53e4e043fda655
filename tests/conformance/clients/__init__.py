"""Five clients behind one interface, so that one test covers all of them."""
