"""How much memory to buy: a model's real geometry, and what a trace would get of it."""

from .config import from_config
from .models import MODELS, Model, Part, model
from .plan import Plan, Point, plan

__all__ = ["MODELS", "Model", "Part", "Plan", "Point", "from_config", "model", "plan"]
