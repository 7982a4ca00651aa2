"""Pipeline templates: pipelines for every number of nodes, which together cover what failures leave (Oobleck)."""
