"""Why a job ran out of memory: from a log to a cause of a closed list, the tensor that was asked for, and what would help."""
