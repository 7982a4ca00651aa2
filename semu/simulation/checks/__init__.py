"""What a job asks for that this version does not model is refused before anything is simulated."""
