"""Several views of each photo for a captioner, whose word probabilities are averaged over them (`caption --views`).

The first is the whole photo and the second its mirror image; the others are those that training has too (`data.views`).
As in training, only what an encoder makes of pixels differs between views: attributes are those of the whole photo, and
the cells of a grid lie where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from capscore.errors import UserError
from tellapart.captioning.visual_input import (
    DetectedBoxes,
    DetectedInput,
    EncoderInput,
    LoadedPhoto,
    Source,
    StoredInput,
    StreamInput,
    VisualInput,
)
from tellapart.data.streams import Inputs
from tellapart.encoders.in_view import in_view


def require(visual: VisualInput, count: int) -> None:
    """Refuses several views where photos can only be seen as a whole."""
    for stream in visual.streams.values() if count > 1 else ():
        if isinstance(stream, StoredInput):
            raise UserError(f"--views: features of {stream.name} were imported; there is no encoder to see views with.")
        if isinstance(stream, DetectedInput | DetectedBoxes):
            raise UserError("--views: a detector's boxes are of whole photos; views of them have none.")
        if isinstance(stream, EncoderInput):
            try:
                in_view(stream.encoder, 1)
            except UserError as error:
                raise UserError(f"--views: {error}") from None


def load(visual: VisualInput, source: Source, count: int) -> LoadedPhoto:
    """One photo in so many views; may be called from several threads.  Raises BadPhoto."""
    loaded = visual.load(source)
    if count == 1:
        return loaded
    require(visual, count)
    each = [
        _others(stream, source, whole, count - 1)
        for stream, whole in zip(visual.streams.values(), loaded.contents, strict=True)
    ]
    return replace(loaded, others=tuple(zip(*each, strict=True)))


def _others(stream: StreamInput, source: Source, whole: Any, count: int) -> Sequence[Any]:
    """The content of so many views beside the whole photo; None where it is the same."""
    if not isinstance(stream, EncoderInput):
        return [None] * count
    pixels = whole if whole.dtype == np.uint8 else stream.read(source).pixels  # or it has stored features
    return [pixels[..., ::-1, :], *(stream.read(source, view).pixels for view in range(1, count))]


def inputs(visual: VisualInput, loaded: Sequence[LoadedPhoto]) -> Iterator[Inputs]:
    """Those of the whole photos, then those of each further view.  All photos have as many."""
    whole = visual.inputs(loaded)
    yield whole
    for view in range(len(loaded[0].others)):
        contents = zip(*(photo.others[view] for photo in loaded), strict=True)  # of each stream, those of B photos
        yield Inputs(
            (name, whole[name] if own[0] is None else stream.stream(own))
            for (name, stream), own in zip(visual.streams.items(), contents, strict=True)
        )
