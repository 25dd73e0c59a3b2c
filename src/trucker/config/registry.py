"""The adapters that are installed, by name: trucker's own and those of other packages, found in the same way.

Looking for entry points reads the metadata of all installed packages, a few milliseconds, once per process and only
when a project is loaded. An adapter is imported when it is first asked for. Executors do not look: trucker comes to
them as a bare package without metadata, so the driver sends the `Component` along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from trucker.config.adapter import BROKEN, Adapter, Connection
from trucker.config.problems import nearest
from trucker.errors import ConfigError

GROUP: Final = "trucker.adapters"

DEFAULT: Final = "postgres"
"""The adapter of a connection that names none. Every project has such a connection: no other adapter has a source."""

TRUCKER: Final = "trucker"
"""The package of trucker's own adapters."""


class Registry:
    """Adapters by name. An adapter that cannot be loaded is an error only for a project that uses it."""

    def __init__(self, points: Iterable[EntryPoint]) -> None:
        self._points: dict[str, list[EntryPoint]] = {}
        for point in points:
            self._points.setdefault(point.name, []).append(point)
        self._loaded: dict[str, Adapter] = {}
        self._modules: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names of all adapters: trucker's own first, and the default first among them."""
        return sorted(
            self._points, key=lambda name: (_package(self._points[name][0]) != TRUCKER, name != DEFAULT, name)
        )

    def __contains__(self, name: object) -> bool:
        return name in self._points

    def __getitem__(self, name: str) -> Adapter:
        """The adapter of that name. Raises `ConfigError` for one that is not there or cannot be used."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def built_in(self) -> list[Adapter]:
        """Trucker's own adapters."""
        return [self[name] for name in self.names if _package(self._points[name][0]) == TRUCKER]

    def use_module(self, module: str) -> None:
        """Note the module of a class that a program gives without an adapter."""
        self._modules.add(module)

    def foreign_modules(self) -> list[str]:
        """The modules in use that are not trucker's own, of adapters and of programs: executors must have them, too."""
        modules = {adapter.connection.__module__ for adapter in self._loaded.values()} | self._modules
        return sorted(module for module in modules if module.partition(".")[0] != TRUCKER)

    def source_modules(self) -> list[str]:
        """The modules of the sources of the adapters in use, which tasks import."""
        places = {adapter.source for adapter in self._loaded.values() if adapter.source}
        return sorted(place.partition(":")[0] for place in places)

    def offering(self, offer: Callable[[Adapter], object]) -> list[str]:
        """The names of the adapters that offer something, for a message. One that cannot be loaded is left out."""
        names = []
        for name in self.names:
            try:
                adapter = self[name]
            except ConfigError:
                continue
            if offer(adapter):
                names.append(name)
        return names

    def _load(self, name: str) -> Adapter:
        points = self._points.get(name)
        if points is None:
            raise self._unknown(name)
        packages = [_package(point) for point in points]
        if len(points) > 1:
            others = [package for package in packages if package != TRUCKER] or packages
            raise ConfigError(
                f"several packages bring an adapter {name}: {', '.join(packages)}",
                remedy=f"keep one of them: pip uninstall {others[-1]}",
                code="TRK117",
            )
        return _adapter(points[0], packages[0])

    def _unknown(self, name: str) -> ConfigError:
        if DEFAULT not in self:
            return ConfigError(
                "trucker's own adapters are not listed among the installed packages",
                remedy="install trucker again (in a clone of its sources: pip install -e .)",
                code=BROKEN,
            )
        suggestion = nearest(name, self.names)
        return ConfigError(
            "unknown adapter",
            remedy=(f'did you mean "{suggestion}"? ' if suggestion else "") + f"use one of {', '.join(self.names)}",
            code="TRK105",
        )


def _adapter(point: EntryPoint, package: str) -> Adapter:
    """The adapter that an entry point refers to, checked."""
    try:
        adapter = point.load()
    except Exception as error:  # an author's module may raise anything
        raise _broken(point, package, f"{type(error).__name__}: {error}") from error
    if not isinstance(adapter, Adapter):
        raise _broken(point, package, f"{point.value} is not a trucker.adapters.Adapter, but of {type(adapter)}")
    if adapter.name != point.name:
        raise _broken(point, package, f"{point.value} is the adapter {adapter.name}")
    return adapter


def _broken(point: EntryPoint, package: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the adapter {point.name} of the package {package} cannot be used: {reason}",
        remedy=f"install {package} again, or tell its author",
        code=BROKEN,
    )


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.module


@cache
def installed() -> Registry:
    """The adapters of this environment, found at the first call."""
    return Registry(entry_points(group=GROUP))


def adapter_of(connection: Connection) -> Adapter:
    """The adapter of a connection."""
    return connection.inline_adapter or installed()[connection.adapter]
