"""A captioner adapted to photos without captions: trained, compared with itself on photos held out, kept or not."""
