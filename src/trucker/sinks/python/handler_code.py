"""From a handler.py to its class: imported, and checked for what its text does not tell.

The module is imported under a name of its own, as a member of a package whose folder is the truck's: `from .rates
import rate` imports rates.py beside it, and two trucks may each have a rates.py.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from trucker.config.adapter import HandlerCode
from trucker.config.handler_file import METHODS, UNUSABLE, HandlerClass, HandlerFile
from trucker.errors import ConfigError, Place
from trucker.handlers import ARGUMENTS, BATCHES, EVENTS, POSITION, defines

_LONGEST: Final = 200


def class_of(code: HandlerCode) -> type:
    """The class. Raises `ConfigError` where it cannot be imported."""
    if isinstance(code, HandlerClass):
        return code.kind
    assert isinstance(code, HandlerFile)
    module = _module(code)
    kind: type = getattr(module, code.name)
    return kind


def instance_of(code: HandlerCode) -> Any:
    """A new instance, made with the truck's settings."""
    kind = class_of(code)
    if isinstance(code, HandlerClass):
        return kind(*code.arguments, **code.settings)
    assert isinstance(code, HandlerFile)
    return kind(**settings_of(code, kind))


def settings_of(code: HandlerFile, kind: type) -> dict[str, Any]:
    """The settings of truck.yml, which are text, in the types that `__init__` is annotated with. Raises `ConfigError`
    for one that cannot be of its type."""
    try:
        hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    except Exception:  # a name that is there for type checking alone
        hints = {}
    settings = {}
    for name, value in code.settings.items():
        try:
            settings[name] = TypeAdapter(hints[name]).validate_python(value) if name in hints else value
        except PydanticSchemaGenerationError:
            settings[name] = value
        except ValidationError:
            shown = getattr(hints[name], "__name__", str(hints[name]))
            remedy = f"correct handler.{name} in truck.yml"
            raise _error(f"the setting {name} is not of type {shown}", code, _line(kind), remedy, METHODS) from None
    return settings


def check_class(code: HandlerCode) -> list[ConfigError]:
    """All that is wrong with the class; imports the file, and makes no instance."""
    try:
        kind = class_of(code)
    except ConfigError as error:
        return [error]
    return list(_errors(code, kind))


def _module(code: HandlerFile) -> types.ModuleType:
    text, path = code.file.text, code.file.path
    digest = hashlib.blake2b(f"{path}\0{text}".encode(), digest_size=8).hexdigest()
    package, name = f"trucker_handler_{digest}", f"trucker_handler_{digest}.handler"
    if name in sys.modules:
        return sys.modules[name]
    parent = types.ModuleType(package)
    parent.__path__ = [str(path.parent)]
    module = types.ModuleType(name)
    module.__file__, module.__package__ = str(path), package
    sys.modules[package], sys.modules[name] = parent, module
    try:
        exec(compile(text, str(path), "exec"), vars(module))
    except BaseException as error:
        for each in [each for each in sys.modules if each == package or each.startswith(f"{package}.")]:
            del sys.modules[each]
        if not isinstance(error, Exception | SystemExit):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == str(path)), 0)
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:_LONGEST]}"
        raise _error(f"it cannot be imported: {reason}", code, line, _remedy(error), UNUSABLE) from None
    return module


def _remedy(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install it, or, for {error.name}.py beside handler.py, write: from .{error.name} import …"
    return "correct it"


def _errors(code: HandlerCode, kind: type) -> Iterator[ConfigError]:
    methods = EVENTS if not code.batches else BATCHES[:2]
    defined = [name for name in methods if defines(kind, name)]
    lacking = [name for name in methods if name not in defined] if code.batches else []
    if not defined or lacking:
        what = f"lacks {' and '.join(lacking)}" if lacking else f"has none of the methods {', '.join(EVENTS)}"
        yield _error(f"{kind.__name__} {what}", code, _line(kind), "define it in the class", METHODS)
    pair = [name for name in POSITION if hasattr(kind, name)]
    if len(pair) == 1:
        message = f"{kind.__name__} has {pair[0]}, and not {''.join(set(POSITION) - set(pair))}"
        yield _error(message, code, _line(getattr(kind, pair[0])), "define both, or neither", METHODS)
    for name, count in ARGUMENTS.items():
        method = getattr(kind, name, None)
        if method is not None and not _takes(method, count):
            shown = ", ".join(("self", *_NAMES[name])) if name in _NAMES else "self"
            message = f"{kind.__name__}.{name} cannot be called with {count or 'no'} argument{'s' * (count != 1)}"
            yield _error(message, code, _line(method), f"write: def {name}({shown})", METHODS)
    yield from _constructor_errors(code, kind)


_NAMES: Final = {
    **dict.fromkeys(EVENTS, ("change",)),
    "on_begin": ("transaction",),
    "on_commit": ("transaction",),
    "on_refresh": ("table",),
    "upsert": ("table", "rows"),
    "delete": ("table", "keys"),
    "truncate": ("table",),
    "is_empty": ("table",),
    "save_position": ("position",),
}


def _takes(method: Any, count: int) -> bool:
    """Whether a method of a class can be called with so many arguments after `self`."""
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*range(count + 1))
    except (TypeError, ValueError):
        return False
    return True


def _constructor_errors(code: HandlerCode, kind: type) -> Iterator[ConfigError]:
    assert isinstance(code, HandlerClass | HandlerFile)
    arguments = code.arguments if isinstance(code, HandlerClass) else ()
    try:
        inspect.signature(kind).bind(*arguments, **code.settings)
        if isinstance(code, HandlerFile):
            settings_of(code, kind)
    except ConfigError as error:
        yield error
    except TypeError as error:
        remedy = "give its arguments as handler: {name: value} in truck.yml, by the names that __init__ has"
        message = f"{kind.__name__} cannot be made with the truck's settings: {error}"
        yield _error(message, code, _line(kind), remedy, METHODS)
    except ValueError:  # no signature to be had, as of a class in C
        return


def _line(item: Any) -> int:
    try:
        line: int = inspect.getsourcelines(item)[1] if inspect.isclass(item) else item.__code__.co_firstlineno
    except (OSError, TypeError, AttributeError):
        return 0
    return line


def _error(message: str, code: HandlerCode, line: int, remedy: str, number: str) -> ConfigError:
    return ConfigError(message, place=Place(code.label, line), remedy=remedy, code=number)
