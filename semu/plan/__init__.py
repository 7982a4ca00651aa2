"""Execution plans: schedules compiled into the actions of every rank (DIP §6.3, PipeWeaver §7.3)."""
