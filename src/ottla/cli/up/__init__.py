"""`ottla up` and `ottla broker`: start brokers."""
