"""Vision-language models of transformers as captioners: what their vision tower makes of a photo in, words out.

A family says how such a model is taken apart: `look` runs its vision tower, `read` its language side over the tower's
rows.  All photos of a model have rows of one shape and the same prompt, so no batch is padded, and captions are decoded
and trained by the same loops as those of the other captioners.  `Generates` is for models that cannot be taken apart.

B photos, N = B*K captions, R rows of a photo, D numbers in a row, t tokens of the prompt, T of a caption, V tokens.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tellapart.data.streams import REGIONS, Inputs

MAX_TOKENS = 40  # of a caption: DiscriTune's
_LANGUAGE = ("text_decoder", "git.encoder", "decoder", "model.language_model", "language_model", "model.text_model")


class Family(Protocol):
    """The two halves of models of a kind."""

    def look(self, network: Any, pixels: Tensor) -> Tensor:
        """The processor's pixels of B photos, one after another -> rows (B, R, D)"""

    def read(self, network: Any, tokens: Tensor, rows: Tensor, cache: Any, past: int) -> Any:
        """Logits and the cache.

        tokens  (N, t)     after `past` others, which the cache knows
        rows    (N, R, D)
        cache   None: nothing is kept
        """


class Blip:
    """BLIP: the decoder attends to the tower's rows."""

    def look(self, network: Any, pixels: Tensor) -> Tensor:
        return network.vision_model(pixel_values=pixels).last_hidden_state  # type: ignore[no-any-return]

    def read(self, network: Any, tokens: Tensor, rows: Tensor, cache: Any, past: int) -> Any:
        return network.text_decoder(
            input_ids=tokens,
            encoder_hidden_states=rows,
            past_key_values=_with_cross_attention(cache),
            use_cache=cache is not None,
        )


class EncoderDecoder:
    """A vision encoder and a text decoder, as in vit-gpt2."""

    def look(self, network: Any, pixels: Tensor) -> Tensor:
        return network.encoder(pixel_values=pixels).last_hidden_state  # type: ignore[no-any-return]

    def read(self, network: Any, tokens: Tensor, rows: Tensor, cache: Any, past: int) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return network(
            decoder_input_ids=tokens,
            encoder_outputs=BaseModelOutput(last_hidden_state=rows),
            past_key_values=_with_cross_attention(cache),
            use_cache=cache is not None,
        )


def _with_cross_attention(cache: Any) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    if cache is None or isinstance(cache, EncoderDecoderCache):
        return cache
    return EncoderDecoderCache(cache, DynamicCache())


class Git:
    """GIT: the tower's rows stand before the text, and only the text has positions."""

    def look(self, network: Any, pixels: Tensor) -> Tensor:
        return network.git.image_encoder(pixel_values=pixels).last_hidden_state  # type: ignore[no-any-return]

    def read(self, network: Any, tokens: Tensor, rows: Tensor, cache: Any, past: int) -> Any:
        tower = network.git.image_encoder
        positions = torch.arange(past, past + tokens.shape[1], device=tokens.device)[None]
        try:
            network.git.image_encoder = _Seen()
            return network(
                input_ids=tokens,
                position_ids=positions,
                pixel_values=None if past else rows[:, None],
                past_key_values=cache,
                use_cache=cache is not None,
            )
        finally:
            network.git.image_encoder = tower


class _Seen(nn.Module):
    """In the place of a tower whose rows are known: passes them on."""

    def forward(self, rows: Tensor, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=rows[:, 0])


class Placeholders:
    """The prompt has places for the photo's rows, as in LLaVA, Idefics, PaliGemma, Qwen-VL and most others."""

    def __init__(self, network: Any, prompt: int, extras: Mapping[str, Tensor], of_one: int, type_of_caption: int):
        """
        prompt           its number of tokens
        extras           what the processor gives beside tokens and pixels, the same for every photo
        of_one           how many pictures, or patches, the processor makes of a photo
        type_of_caption  the type of a caption's tokens, where the processor gives types: 0 or 1
        """
        self.of_one, self.type_of_caption = of_one, type_of_caption
        self.of_text = {name: value for name, value in extras.items() if value.shape == (1, prompt)}
        self.of_photo = {name: value for name, value in extras.items() if name not in self.of_text}
        self.look_takes = set(inspect.signature(network.get_image_features).parameters)
        self.read_takes = set(inspect.signature(network.forward).parameters)
        self.as_list, self.shape = False, torch.Size()  # of what the tower gives

    def look(self, network: Any, pixels: Tensor) -> Tensor:
        photos = len(pixels) // self.of_one
        extras = {name: _repeated(value, photos) for name, value in self.of_photo.items() if name in self.look_takes}
        output = network.get_image_features(pixel_values=pixels, return_dict=True, **extras).pooler_output
        self.as_list = not isinstance(output, Tensor)
        rows = torch.stack(list(output)) if self.as_list else output  # (pictures, ..., D)
        self.shape = rows.shape[1:]
        return rows.reshape(photos, -1, rows.shape[-1])

    def read(self, network: Any, tokens: Tensor, rows: Tensor, cache: Any, past: int) -> Any:
        arguments: dict[str, Any] = {"input_ids": tokens, "past_key_values": cache, "use_cache": cache is not None}
        arguments["pixel_values"] = None  # which some need as an argument
        if past:
            return network(**arguments)
        for name, value in self.of_photo.items():
            if name in self.read_takes and name != "pixel_attention_mask":  # which is of the pixels
                arguments[name] = _repeated(value, len(tokens))
        for name, value in self.of_text.items():
            if name in self.read_takes:
                more = value.new_full((len(tokens), tokens.shape[1] - value.shape[1]), self.type_of_caption)
                arguments[name] = torch.cat([value.expand(len(tokens), -1), more], 1)
        output = rows.reshape(-1, *self.shape)
        out = network(**arguments, mm_encoder_outputs={"image": _Output(list(output) if self.as_list else output)})
        base = getattr(network, "model", network)
        if getattr(base, "rope_deltas", None) is not None:  # the same for all photos, however many are left
            base.rope_deltas = base.rope_deltas[:1]
        return out


class _Output:
    """A vision tower's output without the parts that are not kept: a model that needs them is not taken apart."""

    def __init__(self, pooler_output: Any):
        self.pooler_output = pooler_output

    def __getattr__(self, name: str) -> None:
        return None


def _repeated(value: Tensor, times: int) -> Tensor:
    return value.repeat(times, *[1] * (value.ndim - 1))


@dataclass
class State:
    """The cache of all words so far; before the first word, also the logits after the prompt."""

    cache: Any  # of transformers
    length: int  # tokens that it knows
    logits: Tensor | None = None  # (N, V)

    def select_rows(self, rows: Tensor) -> State:
        cache = _copied(self.cache)
        cache.reorder_cache(rows)
        return State(cache, self.length, None if self.logits is None else self.logits.index_select(0, rows))


def _copied(cache: Any) -> Any:
    """transformers writes into a cache, by putting longer tensors into its layers: those of the copy are others."""
    new = copy.copy(cache)
    if hasattr(cache, "self_attention_cache"):
        new.self_attention_cache = _copied(cache.self_attention_cache)
        new.cross_attention_cache = _copied(cache.cross_attention_cache)
        new.is_updated = dict(cache.is_updated)
    else:
        new.layers = [copy.copy(layer) for layer in cache.layers]
    return new


def ended(logits: Tensor, endings: Sequence[int]) -> Tensor:
    """Some models end with one of several tokens: the first, which the tokenizer knows, stands for all."""
    if len(endings) == 1:
        return logits
    others = torch.tensor(endings[1:], device=logits.device)
    ending = logits[..., list(endings)].amax(-1)
    logits = logits.index_fill(-1, others, torch.finfo(logits.dtype).min)
    logits[..., endings[0]] = ending
    return logits


class VisionLanguage(nn.Module):
    """The language side of such a model over the rows of its vision tower, which is frozen."""

    parallel_forward = True
    max_words = MAX_TOKENS

    def __init__(self, network: Any, family: Family, prompt: Sequence[int], endings: Sequence[int]):
        super().__init__()
        self.network, self.family, self.endings = network, family, endings
        self.register_buffer("prompt", torch.tensor([prompt], device=network.device), persistent=False)  # (1, t)
        self.prompt: Tensor

    @property
    def language(self) -> nn.Module:
        """The side that writes, without the vision tower: it may be trained."""
        names = {name for name, _ in self.network.named_modules()}
        language_side = next(name for name in _LANGUAGE if name in names)
        return self.network.get_submodule(language_side)  # type: ignore[no-any-return]

    @property
    def frozen_names(self) -> list[str]:
        """Weights that a checkpoint need not have."""
        return [name for name, weight in self.named_parameters() if not weight.requires_grad]

    def encode(self, inputs: Inputs) -> tuple[Tensor]:
        return (inputs[REGIONS].values.to(self.network.dtype),)

    def start(self, memory: tuple[Tensor]) -> tuple[State]:
        from transformers import DynamicCache

        (rows,) = memory
        cache = DynamicCache(config=self.network.config.get_text_config(decoder=True))
        out = self.family.read(self.network, self.prompt.expand(len(rows), -1), rows, cache, 0)
        return (State(out.past_key_values, self.prompt.shape[1], ended(out.logits[:, -1], self.endings)),)

    def step(self, token: Tensor, state: tuple[State], memory: tuple[Tensor]) -> tuple[Tensor, tuple[State]]:
        """The first token is BOS: the prompt stands in its place, and was read by `start`."""
        (past,) = state
        if past.logits is not None:
            return past.logits, (State(past.cache, past.length),)
        rows = memory[0][:1].expand(len(token), -1, -1)  # the cache knows what each row's photo is like
        out = self.family.read(self.network, token[:, None], rows, _copied(past.cache), past.length)
        return ended(out.logits[:, -1], self.endings), (State(out.past_key_values, past.length + 1),)

    def forward(self, tokens: Tensor, memory: tuple[Tensor], token_mask: Tensor | None = None) -> Tensor:
        rows = memory[0].repeat_interleave(len(tokens) // len(memory[0]), 0)
        read = torch.cat([self.prompt.expand(len(tokens), -1), tokens[:, 1:]], 1)
        logits = self.family.read(self.network, read, rows, None, 0).logits[:, -tokens.shape[1] :]
        return ended(logits if token_mask is None else logits[token_mask], self.endings)


class Generates(nn.Module):
    """A model that is only asked as a whole, by transformers' own `generate`: it can neither be trained nor contrasted.

    Its memory is the processor's pixels.
    """

    max_words = MAX_TOKENS

    def __init__(self, network: Any, inputs: Mapping[str, Tensor], shape: Sequence[int], endings: Sequence[int]):
        """
        inputs  what the processor gives beside pixels, for one photo
        shape   of one photo's pixels
        """
        super().__init__()
        self.network, self.inputs, self.shape, self.endings = network, dict(inputs), tuple(shape), endings

    def encode(self, inputs: Inputs) -> tuple[Tensor]:
        return (inputs[REGIONS].values,)

    @torch.no_grad()
    def generate(self, memory: tuple[Tensor], **settings: Any) -> tuple[Tensor, Tensor]:
        """Tokens (B, K, T) and their log p (B, K, T), by settings of `generate`; K = num_return_sequences."""
        pixels = memory[0].to(self.network.dtype)
        inputs = {name: _repeated(value, len(pixels)) for name, value in self.inputs.items()}
        out = self.network.generate(
            pixel_values=pixels.reshape(len(pixels) * self.shape[0], *self.shape[1:]),
            **inputs,
            eos_token_id=list(self.endings),
            output_logits=True,
            return_dict_in_generate=True,
            **settings,
        )
        beams = getattr(out, "beam_indices", None)
        scores = self.network.compute_transition_scores(out.sequences, out.logits, beams, normalize_logits=True)
        length = scores.shape[1]
        tokens = out.sequences[:, out.sequences.shape[1] - length :]
        for other in self.endings[1:]:
            tokens = tokens.where(tokens != other, self.endings[0])
        shape = (len(pixels), -1, length)
        return tokens.reshape(shape), scores.reshape(shape)
