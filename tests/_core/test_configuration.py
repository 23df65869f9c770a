import re
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from dmb._core.configuration import Configurable, typed


@dataclass
class Things:
    count: int
    share: float = 0.5
    name: str = ""
    on: bool = False
    kind: Literal["a", "b"] = "a"
    limit: int | None = None
    numbers: tuple[float, ...] = ()
    source: Annotated[str, "fixed"] = ""
    own: object = None


def test_values_of_the_right_types_are_taken():
    values = {
        "count": 1,
        "share": 2,
        "name": "x",
        "on": True,
        "kind": "b",
        "limit": None,
        "numbers": [1, 2.5],
        "own": {},
    }
    assert vars(typed(Things, values)) == values | {"source": ""}
    assert typed(Things, {"count": 1, "share": float("nan")}).share != 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": "1"}, "count must be a whole number, got '1'"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"count": 1.0}, "count must be a whole number, got 1.0"),
        ({"count": 2**63}, "count must be a whole number, got 9223372036854775808"),
        ({"share": None}, "share must be a number, got None"),
        ({"share": 10**400}, "share must be a number, got 1000"),
        ({"name": 3}, "name must be a text, got 3"),
        ({"on": 1}, "on must be true or false, got 1"),
        ({"kind": "c"}, "kind must be 'a' or 'b', got 'c'"),
        ({"kind": []}, "kind must be 'a' or 'b', got []"),
        ({"limit": "x"}, "limit must be a whole number or null, got 'x'"),
        ({"numbers": [1, "x"]}, "numbers must be a list of the right type, got "),
        ({"source": []}, "source must be a text, got "),
        ({"more": 1}, "it has an unknown entry, more"),
    ],
)
def test_a_value_of_another_type_is_named(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        typed(Things, {"count": 1} | wrong)


@pytest.mark.parametrize("values", [None, 3, "x", [1], {}])
def test_what_is_no_object_or_lacks_an_entry_is_refused(values):
    with pytest.raises(ValueError, match=r"must be a JSON object, got|it has no count"):
        typed(Things, values)


class Shelf(Configurable):
    """An object that describes itself."""

    def __init__(self, count: int, names: list[str], colour: str | None = None):
        self.count, self.names, self.colour = count, names, colour


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"colour": [["a"]]}, "colour must be a text or null, got [['a']]"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"names": [1]}, "names must be a list of the right type, got [1]"),
        ({"size": 1}, "Shelf cannot be built from"),
    ],
)
def test_an_object_is_not_built_of_values_of_another_type(wrong, message):
    config = Shelf(2, ["a", "b"]).to_config()
    assert vars(Configurable.from_config(config)) == {"count": 2, "names": ["a", "b"], "colour": None}
    with pytest.raises(ValueError, match=re.escape(message)):
        Configurable.from_config(config | wrong)
