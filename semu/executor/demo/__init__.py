"""A plan run on this machine with small layers: calibrated, checked against the model in one piece, and drawn."""

from semu.executor.demo.run import DemoReport, run_demo

__all__ = ["DemoReport", "run_demo"]
