"""Stores of an encoder's features, by folder."""

from pathlib import Path

from tellapart.features.sources import Encoded


def extract(examples, encoder, folder: Path, extraction=None):
    return Encoded(encoder).fill(folder, examples, extraction)


def feature_store(folder: Path, encoder):
    return Encoded(encoder).store(folder)


def store_folder(root: Path, dataset: str, encoder) -> Path:
    return Encoded(encoder).folder(root, dataset)
