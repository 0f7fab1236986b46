"""Gradients of weights that are made in one product over all words are those that autograd makes word by word."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tellapart.decoding.sample import DeferredWeightGradients


class Cell(nn.Module):
    """Layers that are used at every word, one of them for two ends."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.first, self.again = nn.Embedding(7, 5), nn.Linear(4, 5, bias=False), nn.Linear(5, 5)
        self.word = nn.Linear(5, 7)
        self.word.weight = self.embed.weight

    def forward(self, photo, tokens):
        state = self.first(photo)
        logits = []
        for token in tokens.unbind(1):
            state = torch.tanh(self.again(state + self.embed(token)))
            logits.append(self.word(state))
        return torch.stack(logits, 1)


@pytest.fixture
def cell():
    return Cell().double()


@pytest.fixture
def given():
    torch.manual_seed(1)
    return torch.randn(3, 4, dtype=torch.double, requires_grad=True), torch.randint(7, (3, 6))


def gradients(cell, photo, tokens):
    logits = cell(photo, tokens)
    (logits.log_softmax(2) * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
    result = {name: parameter.grad.clone() for name, parameter in cell.named_parameters()} | {
        "photo": photo.grad.clone()
    }
    cell.zero_grad()
    photo.grad = None
    return result


def test_gradients_are_those_of_autograd(cell, given):
    expected = gradients(cell, *given)
    with DeferredWeightGradients():
        result = gradients(cell, *given)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_layers_are_entered_with_any_number_of_dimensions(cell, given):
    """A layer that all words pass together, as the words' own of teacher forcing, is no exception."""
    expected = torch.autograd.grad(cell.again(cell.embed(given[1])).square().sum(), list(cell.again.parameters()))
    with DeferredWeightGradients():
        result = torch.autograd.grad(cell.again(cell.embed(given[1])).square().sum(), list(cell.again.parameters()))
    torch.testing.assert_close(result, expected)


def test_backward_may_come_after_it_was_left_and_twice(cell, given):
    expected = gradients(cell, *given)
    with DeferredWeightGradients():
        logits = cell(*given)
    loss = (logits.log_softmax(2) * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum()
    for _ in range(2):
        cell.zero_grad()
        loss.backward(retain_graph=True)
        torch.testing.assert_close({k: p.grad for k, p in cell.named_parameters()}, dict(list(expected.items())[:-1]))


def test_frozen_weights_get_no_gradient_and_others_do(cell, given):
    cell.again.requires_grad_(False)
    with DeferredWeightGradients():
        cell(*given).sum().backward()
    assert cell.again.weight.grad is None
    assert cell.first.weight.grad is not None
    assert given[0].grad is not None


def test_it_leaves_no_graph_where_gradients_are_off(cell, given):
    with torch.no_grad(), DeferredWeightGradients():
        assert not cell(*given).requires_grad


def test_under_autocast_layers_compute_in_its_type(given):
    cell = Cell()
    with torch.autocast("cpu", torch.bfloat16), DeferredWeightGradients():
        assert cell(given[0].float(), given[1]).dtype == torch.bfloat16
