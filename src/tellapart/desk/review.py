"""What a person decided about a caption: the review fields of a row in a captions file.

    review    "approved", "rejected" or "edited"
    original  the caption before a person edited it
    edited    true where a person wrote the caption, in a review or by hand

`caption`, run again, never replaces a caption that is edited or approved; a rejected one is replaced once the model or
its settings are others.  `adapt --feedback` learns from all three.
"""

from __future__ import annotations

from tellapart.desk import resume
from tellapart.desk.rows import REVIEWS, Review, Row


def review_of(row: Row) -> Review | None:
    """None: not reviewed.  A caption that was changed by hand, in an editor or a spreadsheet, counts as edited.

    >>> review_of({"file": "a.jpg", "caption": "my dog Rex", "edited": True})
    'edited'
    """
    if "caption" not in row:
        return None
    decided = next((review for review in REVIEWS if row.get("review") == review), None)
    return decided or ("edited" if resume.is_by_hand(row) else None)


def reviewed(row: Row, review: Review | None, caption: str | None = None) -> Row:
    """The row after a decision; None takes decisions back, and brings the caption back that was there before.

    caption  what a person wrote instead; only with "edited"

    >>> reviewed({"file": "a.jpg", "caption": "a dog"}, "edited", "my dog Rex")
    {'file': 'a.jpg', 'caption': 'my dog Rex', 'original': 'a dog', 'edited': True, 'review': 'edited'}
    """
    if (review == "edited") != (caption is not None):
        raise ValueError("a review is 'edited' if and only if there is another caption")
    if review is None:
        back = {"caption": row["original"]} if "original" in row else {}
        dropped = {"review", "original", *(["edited"] if back else [])}
        return {name: value for name, value in row.items() if name not in dropped} | back
    if caption is not None:
        row = row | {"caption": caption, "original": row.get("original", row.get("caption", "")), "edited": True}
    return row | {"review": review}
