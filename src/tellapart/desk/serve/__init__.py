"""`tellapart serve`: a folder of photos, their captions, and what people decide about them."""
