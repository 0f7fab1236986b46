"""Captions that tell photos apart."""
