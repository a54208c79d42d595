"""The paper's tables and figures, run again: `cells` says what is to be run, `running` runs it, `results` sums it up in a small JSON file,
`claims` judges, and `page` and `figures` show it; `studies` and `study_sections` do the same beyond the paper. The paper's own numbers are
in `paper`, and nowhere else."""
