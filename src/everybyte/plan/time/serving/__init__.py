"""The time of serving: a decode step, a prefill, and both under the load that a job states."""
