"""The runs of the paper: recipes, run folders, searches over recipes, and reports."""
