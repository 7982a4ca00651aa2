"""From measurements to profiles: reading, fitting, scoring, writing. See README.md in this folder."""
