"""Device and host memory of every pipeline rank: static memory, peaks, curves, reserved memory."""
