"""Captions where they belong: in sidecars and files of photos, and in the pages of a site."""
