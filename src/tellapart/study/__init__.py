"""The human studies of the papers: made from caption files, run in a browser, and analysed."""
