"""Building blocks of models, from a linear layer to a transformer layer, and adapters of low rank."""
