"""Rules, what generators are made of: frozen dataclasses that are called with a pipeline's shape (FlexPipe §4.2, §5.2).

``Alternate``, ``Sweep``, ``Pattern`` and ``Block`` write an order down; ``Priority`` (FlexPipe's Algorithm 1) and
``EarliestStart`` find one by running the pipeline; ``BestOf`` takes the best of several rules, ``Around`` puts encoders
around the order of a rule.
"""
