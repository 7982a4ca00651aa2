"""Which sample goes to which replica and microbatch, so that no replica, rank or module waits (001 ch. 4).

Files:

    costs.py         what a sample costs on every unit of a job's pipeline, fitted on packs that semu's engine costed
    packs.py         the packs
    problem.py       what a method is asked, and what it answers
    methods/         one method a file, all in a table
    kernels/         greedy assignment, local search and sums over bins; subset sums and pairs of all replicas
    pipeline.py      the iteration of many replicas from fitted costs, in milliseconds
    exact.py         the fastest assignment of a dozen or two samples, by CP-SAT
    allocation.py    GPUs for modules in proportion to work, and how many samples tell them; workload.py: of a job
    configuration.py parallel sizes of all modules by algorithm 3
    assignment.py    ``Assignment``: which sample goes where, and what follows from it
    assigner.py      ``Assigner`` and ``assign``
    study.py         all methods on one job, simulated
"""
