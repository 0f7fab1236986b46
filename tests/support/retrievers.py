"""A listener whose beliefs can be worked out by hand: captions are bags of words, photos bags of what they show."""

import torch
import torch.nn.functional as F

from tellapart.data.tokenizers import WordTokenizer
from tellapart.retrievers.readers import WordReader
from tellapart.retrievers.retriever import Embedded, Retriever


class Bags:
    def __init__(self, vocabulary, scale):
        self.vocabulary, self.log_scale = vocabulary, torch.tensor(float(scale)).log()

    def embed_captions(self, captions):
        bags = F.one_hot(captions, self.vocabulary).sum(1).float()
        return F.normalize(bags[:, 4:], dim=1)  # without the special tokens


def bag_of_words_retriever(words, *, scale=10.0):
    tokenizer = WordTokenizer(words)
    towers = Bags(len(tokenizer), scale)
    return Retriever("bags", "0" * 64, "photos", len(words), towers, WordReader(tokenizer), None, torch.device("cpu"))


def photos(listener, shown, sha256=None):
    """A collection of photos that show these words: {file: words}"""
    vectors = listener.embed_captions(list(shown.values())).numpy()
    return Embedded(list(shown), list(sha256 or shown), {}, vectors)
