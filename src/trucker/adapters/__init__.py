"""Adapters: one small module per store, and for other packages what an adapter is made of."""

from trucker.abilities import Abilities, Visible
from trucker.config.adapter import Adapter, Connection
from trucker.config.events import EventConnection
from trucker.config.values import Bytes, ProjectPath, Seconds, refuse
from trucker.types import Form, Kind, TypeForms

__all__ = [
    "Abilities",
    "Adapter",
    "Bytes",
    "Connection",
    "EventConnection",
    "Form",
    "Kind",
    "ProjectPath",
    "Seconds",
    "TypeForms",
    "Visible",
    "refuse",
]
