"""Models of several modality modules."""
