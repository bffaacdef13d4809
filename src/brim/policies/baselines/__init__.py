"""Published policies and simple ones, beside which brim's own is measured."""
