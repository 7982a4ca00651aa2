"""The scheduling problem of a batch as data: ``SearchProblem``, how it is built, checked, stored."""
