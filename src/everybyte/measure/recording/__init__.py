"""Measuring a run: torch's peaks by phase, the driver's view of each process, host memory; one JSON file a run."""
