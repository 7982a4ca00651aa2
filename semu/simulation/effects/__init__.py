"""What makes stages slower than their templates: launches, contention, noise; and how sure a time is."""
