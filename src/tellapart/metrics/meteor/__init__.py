"""METEOR 1.5 without Java: captions to statistics that add up over photos, and statistics to scores."""

from tellapart.metrics.meteor.index import available
from tellapart.metrics.meteor.meteor import Meteor, load, value

__all__ = ["Meteor", "available", "load", "value"]
