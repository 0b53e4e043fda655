"""Five clients behind one interface, so that one test speaks for all of them."""
