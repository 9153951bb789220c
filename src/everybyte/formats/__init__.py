"""What people write, read as jobs: configurations, command lines and scripts of training frameworks and serving engines, and the files of containers.

The way of the data: a `Source` (a file, standard input, a command) becomes a `Document` (a tree with places) or `Command`s (words with places); the reader
of its format turns either into a `JobDraft`, in which every value has an origin; `finish` checks it against the form of a job. Nothing is executed, and
nothing is fetched.
"""

from __future__ import annotations
