"""The speed of jaxbridge beside its peers: `python -m benchmarks.speed`."""
