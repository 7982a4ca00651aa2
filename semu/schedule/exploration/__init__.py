"""Schedules explored by rule (FlexPipe §6): the space, what each rule makes of a pipeline, why ranks idle, inverse."""
