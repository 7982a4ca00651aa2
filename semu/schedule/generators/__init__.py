"""One pipeline schedule per file; ``semu.schedule.registry`` lists them."""
