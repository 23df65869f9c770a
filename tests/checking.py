"""Shape and type checks of every call into dmb, as jaxtyping and beartype make them, but each only once.

Annotations speak of types, of the dtypes and shapes of arrays and of the values of strings. A call in which all of
these are as in an earlier call gets the same answer, so it is not checked again. jaxtyping's own decorator checks every
call, arguments twice, and took half the time of the tests.
"""

import functools
import inspect
import typing

import jaxtyping
import numpy as np
import torch
from beartype.door import die_if_unbearable

in_one_scope = jaxtyping.jaxtyped  # an axis has one length in all that is checked under `in_one_scope("context")`


def install():
    """Put `jaxtyped` where jaxtyping's import hook looks for its decorator."""
    jaxtyping.jaxtyped = jaxtyped


def jaxtyped(*, typechecker):
    """In place of jaxtyping's decorator of the same name."""
    del typechecker  # beartype
    return checked


def checked(function):
    """A function that checks what enters and leaves it; of a dataclass, the constructor."""
    if isinstance(function, type):
        if "__dataclass_fields__" in vars(function) and "__init__" in vars(function):
            function.__init__ = checked(function.__init__)
        return function
    if not function.__annotations__:
        return function
    passed = set()
    check = None

    @functools.wraps(function)
    def call(*args, **named):
        nonlocal check
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **named)
        if check is None:  # not earlier: annotations may name what their module defines further down
            check = checker(function)
        arguments = look(args), look(tuple(named.values())), *named
        once(passed, arguments, lambda: check(args, named))
        result = function(*args, **named)
        once(passed, (arguments, look(result)), lambda: check(args, named, result))
        return result

    return call


def look(value):
    """All that annotations can speak of; what cannot be told in short is unhashable."""
    kind = type(value)
    if issubclass(kind, torch.Tensor | np.ndarray):
        return kind, value.dtype, value.shape
    if issubclass(kind, tuple):
        return kind, *map(look, value)
    if issubclass(kind, str | type | list | dict | set | frozenset):
        return value
    return kind


def once(passed, key, check):
    try:
        if key in passed:
            return
    except TypeError:  # unhashable
        check()
    else:
        check()
        passed.add(key)


MISSING = object()


def checker(function):
    """A function that checks arguments, and the result if there is one, in one scope of axes."""
    signature = inspect.signature(function)
    parameters = signature.parameters
    hints = {name: resolved(hint, function.__globals__) for name, hint in function.__annotations__.items()}

    def check(args, named, result=MISSING):
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        values = [(name, each) for name, value in bound.arguments.items() for each in several(parameters[name], value)]
        if result is not MISSING:
            values.append(("return", result))
        with in_one_scope("context"):
            for name, value in values:
                if name in hints:
                    die_if_unbearable(value, hints[name])

    return check


def several(parameter, value):
    """`*args` and `**named` have one annotation for each of what they hold."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return value
    return value.values() if parameter.kind is parameter.VAR_KEYWORD else [value]


def resolved(hint, names):
    """An annotation without strings; anything goes where it names what is imported for type checkers alone."""

    def holder(value): ...

    holder.__annotations__ = {"value": hint}
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["value"]
    except NameError:
        return typing.Any
