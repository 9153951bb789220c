"""From the train section of a job to settings: the one place where its keys are read into recipes, adapters, shardings and roles."""
