"""A byte-level BPE tokenizer, trained on a few captions, whose padding is its end (as GPT-2's is)."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tellapart.data.tokenizers import SubwordTokenizer


def byte_pairs(captions, vocab_size=320):
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(captions, trainer)
    return SubwordTokenizer(library, eos=library.token_to_id("<|endoftext|>"))
