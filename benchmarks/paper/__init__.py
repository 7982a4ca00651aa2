"""The tables and figures of DIP (PipeWeaver prints the same results): theirs beside ours.

    python -m benchmarks.paper --all --out out/paper

Files: ``choices.py`` (every input that the papers leave open), ``_scripts.py`` (the list of scripts), ``_run.py``
(running them), ``_jobs.py`` (jobs, baselines and searches under the choices), ``_steps.py`` (DIP in steps),
``_results.py`` (what a script returns), ``_report.py`` (Markdown of it), ``_pictures.py`` (what pictures share),
``_parts.py`` (small parts), and a script for each table or figure.
"""
