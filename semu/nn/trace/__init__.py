"""From a module's ``forward`` to a graph: symbolic tensors, the tape, backward by autograd."""
