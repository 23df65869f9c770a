"""Settings that all tests share."""

import gc
import inspect
from collections import Counter
from functools import partial, update_wrapper, wraps
from importlib.util import cache_from_source
from pathlib import Path
from types import FunctionType

import hypothesis
import jaxtyping
import numpy as np
import pytest
import torch

torch.set_num_threads(1)
gc.disable()  # until all is loaded

# No test asserts on time. The first example of a process is slow: hypothesis reads all our sources for constants.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

collect_ignore_glob = ["docs/_build/*", "docs/conf.py", "docs/gallery/*", "docs/_ext/mathml.py"]
"""The site, and what only Sphinx can import or runs when it is imported."""


class FirstCalls:
    """Shapes and types are checked in the first calls that a test makes of each function.

    Checks take longer than the calls that they check, and a training makes the same calls over and over.
    """

    at_most = 0

    def begin(self, at_most):
        self.at_most, self.made = at_most, Counter()

    def include(self, function):
        """Whether this call of a function, which may be made anew in each call of the one around it, is checked."""
        if not self.at_most:
            return False
        self.made[function.__code__] += 1
        return self.made[function.__code__] <= self.at_most


CHECKS = FirstCalls()


def _jaxtyped(function=None, *, typechecker):
    """Prepare a function for checks when one is due: that takes milliseconds, and most functions are never checked.

    A call like one that has passed, in all that a check looks at, is not checked again.
    """
    if function is None:
        return partial(_jaxtyped, typechecker=typechecker)
    if not isinstance(function, FunctionType):
        return _jaxtyped_at_once(function, typechecker=typechecker)
    checked, passed, answers = None, set(), []

    def answered(*args, **options):
        return answers.pop()

    @wraps(function)
    def called(*args, **options):
        nonlocal checked
        __tracebackhide__ = True
        answer = function(*args, **options)
        if CHECKS.include(function) and (call := _looks(args, options, answer)) not in passed:
            if checked is None:
                # in the function's own module, where the names in its annotations mean what they say
                stand_in = FunctionType(answered.__code__, function.__globals__, closure=answered.__closure__)
                checked = _jaxtyped_at_once(update_wrapper(stand_in, function), typechecker=typechecker)
            answers.append(answer)
            checked(*args, **options)
            passed.add(call)
        return answer

    return called


def _looks(*values):
    """What a check looks at: classes, and shapes and types of arrays; of literals the value, of lists the beginning."""
    return tuple(map(_look, values))


def _look(value):
    kind = type(value)
    if kind in (str, type):
        return value
    if kind is dict:
        return kind, *map(_look, value), *map(_look, value.values())
    if isinstance(value, tuple | list):
        return kind, *map(_look, value[:16])
    return (kind, value.dtype, value.shape) if isinstance(value, torch.Tensor | np.ndarray) else kind


_jaxtyped_at_once = jaxtyping.jaxtyped
jaxtyping.jaxtyped = jaxtyping._decorator.jaxtyped = _jaxtyped  # the latter for properties, and what classes make


def _compiled(checker, path, *arguments, **options):
    """Where the bytecode of a file lies: with checks if it is ours; what we import has been compiled without them."""
    if "/dmb/" in Path(path).as_posix().rpartition("site-packages")[2]:
        return _compiled_with_checks(checker, path, *arguments, **options)
    return cache_from_source(path, *arguments, **options)


_compiled_with_checks = jaxtyping._import_hook._optimized_cache_from_source
jaxtyping._import_hook._optimized_cache_from_source = _compiled


def _signed(name, qualname, module, signature, output):
    """A function whose call checks the arguments, or the answer: arguments are known to be right by then."""
    if output:
        unchecked = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
        signature = signature.replace(parameters=unchecked)
    return _signed_with_all(name, qualname, module, signature, output)


_signed_with_all = jaxtyping._decorator._make_fn_with_signature
jaxtyping._decorator._make_fn_with_signature = _signed


def pytest_collection_modifyitems(items):
    """Files with long tests first, so that no worker ends with one while the others are idle.

    Files stay whole, so that few workers make what the tests of a file share.
    """
    first = {item.path for item in items if _is_long(item)}
    items.sort(key=lambda item: item.path in first, reverse=True)


def pytest_collection_finish():
    """What is loaded by now stays: garbage collection need not go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # tests leave little behind
    gc.enable()


@pytest.fixture(autouse=True)
def _type_checks(request):
    """In the test itself, not in what tests share; and not in long tests, because short ones check the same calls."""
    CHECKS.begin(0 if _is_long(request.node) else 5)
    yield
    CHECKS.begin(0)


@pytest.fixture
def no_type_checks(_type_checks):
    """For messages that the shape checks of the test suite, which a user does not have, would forestall."""
    CHECKS.begin(0)


def _is_long(item):
    return item.get_closest_marker("long") is not None or item.path.suffix == ".md"
