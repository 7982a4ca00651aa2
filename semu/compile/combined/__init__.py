"""Forward and backward stages of two microbatches that run in one, so that exchanges of experts' tokens hide."""
