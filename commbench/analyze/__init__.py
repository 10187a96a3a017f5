"""From records to plain data: points over runs, curves, the fitted model. Pure functions, nothing printed."""
