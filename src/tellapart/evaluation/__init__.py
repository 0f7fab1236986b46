"""Models side by side on the photos of data sets: what is measured, the table, the page and the TREC files."""
