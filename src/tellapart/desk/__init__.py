"""The photo desk: captions of one's own photos in files, beside photos and in pages, reviewed and kept.

Files of captions, and which of their rows stay; servers that caption; subtitles, context and styles.  The research
code never imports it (tests/test_import_order.py).
"""
