"""Which photo a caption is of."""

import pytest

from capscore import caption_files


@pytest.mark.parametrize(
    ("names", "files", "meant"),
    [
        (["c/1.jpg", "c/2.jpg"], {"/a/1.jpg": "x", "/b/2.jpg": "y"}, {"c/1.jpg": "x", "c/2.jpg": "y"}),
        (["c/1.jpg"], {"/a/1.jpg": "x", "/b/1.jpg": "y"}, {}),  # two photos
        (["c/1.jpg", "d/1.jpg"], {"/a/1.jpg": "x"}, {}),  # two captions
        (["c/1.jpg", "/b/2.jpg"], {"/a/1.jpg": "x", "/b/2.jpg": "y"}, {"/b/2.jpg": "y"}),  # the files are there
        (["x", "c/1.jpg", "c/2.jpg"], {"/a/1.jpg": "x", "/b/2.jpg": "y"}, {"x": "x", "c/2.jpg": "y"}),
        (["a\0/2.jpg"], {"/b/2.jpg": "y"}, {"a\0/2.jpg": "y"}),
    ],
)
def test_names_of_files_count_where_only_one_photo_and_one_caption_have_them(names, files, meant):
    assert caption_files.photos_meant(names, ["x", "y"], files) == meant
