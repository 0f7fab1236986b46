"""What a sampled caption is worth: tensors in, tensors out."""
