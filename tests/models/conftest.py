"""The same small retrievers as in the tests of retrievers."""

from retrievers.conftest import encoder, folders, write_model

__all__ = ["encoder", "folders", "write_model"]
