"""What a person means who leaves settings open: framework, settings of its official example, layout over several GPUs. Each with its origin.

`start.started` is the door; an answer to a job file needs less of this room, so that nothing is imported here.
"""
