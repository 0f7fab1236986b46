"""The photo desk: captions in files, checked, written into photos and pages, and reviewed in a browser."""
