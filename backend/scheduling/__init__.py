"""Which device runs a job and when: probing, device resolution, target selection, queues, the worker pool."""
