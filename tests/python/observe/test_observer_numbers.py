"""Numbers that a call finds: facts by value at first, by type once another one was there."""

import pytest

from observer_tools import Tensor, built, observe, program, supported

pytestmark = supported

SOURCE = """
class Box:
  pass
class Slots:
  __slots__ = ("k",)
box, slots, D, L = Box(), Slots(), {"k": 2.5}, [0, 2.5]
box.k = slots.k = K = 2.5
def closed():
  cell = 2.5
  def read(x): return x * cell
  def write(v):
    nonlocal cell
    cell = v
  return read, write
cell, set_cell = closed()
def attribute(x): return x * box.k
def slot(x): return x * slots.k
def item(x): return x * D["k"]
def last(x): return x * L[-1]
def glob(x): return x * K
def twice(x): return x * box.k * box.k
def derived(x): return x * (1 - box.k)
def asked(x): return x if box.k > 1 else x * box.k
def text(x): return x * len(str(box.k))
def stored(x):
  y = x * box.k
  box.k = 0.25
  return y * box.k
def counted(x):
  box.k += 1
  return x * box.k
def unpacked(x):
  a, b = D["k"]
  return x * a * b
def indexed(x): return x * box.k[0] * box.k[-1]
def starred(x):
  a, *rest = K
  return x * a * rest[0]
def in_cell():
  cell = (2.5, 0.5)
  def read(x): return x * cell[0] * cell[1]
  def write(v):
    nonlocal cell
    cell = v
  return read, write
of_cell, set_tuple = in_cell()
def whole(x):
  a, b = D["k"]
  return x * a * b * len(str(D["k"]))
def asked_of(x):
  a, b = D["k"]
  return x * len(str(a)) * b
def kept(x):
  a, b = D["k"]
  D["k"] = (a, 0.5)
  return x * a * b
"""
WRITES = {
    "attribute": "box.k = V",
    "slot": "slots.k = V",
    "item": "D['k'] = V",
    "last": "L[1] = V",
    "glob": "K = V",
    "cell": "set_cell(V)",
}


def world(value):
    w = program(SOURCE)

    def write(name, value):
        w.V = value
        exec(WRITES.get(name, "box.k = V"), w.__dict__)

    return w, write


@pytest.mark.parametrize("name", WRITES)
def test_a_second_value_leaves_the_type(name):
    ext, (w, write) = built(), world(2.5)
    function, x = getattr(w, name), Tensor(seconds=1)
    first = observe(ext, function, x)
    assert not first.unsound and first.facts.numbers() == []
    write(name, 3.5)
    assert not first.facts.check()
    second = observe(ext, function, x, varying=first.facts)
    assert second.result == x * 3.5 and not second.unsound and second.symbolic == [True]
    assert second.facts.numbers() == [3.5]
    for value in (4.5, 2.5, -0.0):
        write(name, value)
        assert second.facts.numbers() == [value]
    write(name, 3)
    assert second.facts.numbers() is None and not second.facts.check()
    write(name, 1.5)
    third = observe(ext, function, x, varying=second.facts)  # of facts that hold it is a parameter still
    assert third.facts.numbers() == [1.5] and third.facts.describe() == second.facts.describe()


@pytest.mark.parametrize(
    ("name", "symbolic"),
    [("twice", [True]), ("derived", [True, True]), ("asked", [True]), ("text", [False]), ("stored", [True])],
)
def test_what_the_call_does_with_it(name, symbolic):
    ext, (w, write) = built(), world(2.5)
    function, x = getattr(w, name), Tensor(seconds=1)
    first = observe(ext, function, x)
    write(name, 3.5)
    second = observe(ext, function, x, varying=first.facts)
    assert not second.unsound and second.symbolic == symbolic
    write(name, 4.5)
    assert second.facts.numbers() == ([4.5] if symbolic[0] else None)


def test_a_counter_finds_what_it_left():
    ext, (w, _) = built(), world(2.5)
    x = Tensor(seconds=1)
    first = observe(ext, w.counted, x)
    second = observe(ext, w.counted, x, varying=first.facts)
    assert second.result == x * 4.5 and not second.unsound and second.symbolic == [True, True]
    assert second.facts.numbers() == [4.5] and second.state == "" and second.effects == ["box.k = float (model.py:30)"]


def test_changes_of_two_objects_are_seen_at_once():
    ext, (w, write) = built(), world(2.5)
    exec("def both(x): return x * box.k * D['k']", w.__dict__)
    first = observe(ext, w.both, Tensor(seconds=1))
    write("attribute", 3.5)
    write("item", 4.5)
    second = observe(ext, w.both, Tensor(seconds=1), varying=first.facts)
    assert second.symbolic == [True, True] and second.facts.numbers() == [3.5, 4.5]


TUPLES = {"unpacked": "D['k'] = V", "indexed": "box.k = V", "starred": "K = V", "of_cell": "set_tuple(V)"}


@pytest.mark.parametrize("name", TUPLES)
def test_numbers_of_a_tuple_that_is_taken_apart(name):
    ext, (w, _) = built(), world(2.5)

    def write(value):
        w.V = value
        exec(TUPLES[name], w.__dict__)

    function, x = getattr(w, name), Tensor(seconds=1)
    write((2.5, 0.5))
    first = observe(ext, function, x)
    assert not first.unsound and first.facts.numbers() == []
    write((3.5, 0.5))
    assert not first.facts.check()
    second = observe(ext, function, x, varying=first.facts)
    assert second.result == x * 3.5 * 0.5 and not second.unsound and second.symbolic == [True]
    assert second.facts.numbers() == [3.5] and "is of the form (float, 0.5)" in "\n".join(second.facts.describe())
    write((4.5, 0.5))
    assert second.facts.numbers() == [4.5]
    for other in ((4.5, 1.5), (4, 0.5), (4.5, 0.5, 0.5), (4.5,), [4.5, 0.5], 4.5):
        write(other)
        assert second.facts.numbers() is None and not second.facts.check(), other
    write((4.5, 1.5))
    third = observe(ext, function, x, varying=second.facts)
    assert third.facts.numbers() == [4.5, 1.5] and third.symbolic == [True, True]
    write((1 << 70, 1.5))
    assert third.facts.numbers() is None


@pytest.mark.parametrize(
    ("name", "symbolic", "left"),
    [("unpacked", [True], (4.5,)), ("whole", [False], None), ("asked_of", [False], None), ("kept", [False], None)],
)
def test_what_the_call_does_with_a_tuple(name, symbolic, left):
    ext, (w, _) = built(), world(2.5)
    function, x = getattr(w, name), Tensor(seconds=1)
    w.D["k"] = (2.5, 0.5)
    first = observe(ext, function, x)
    w.D["k"] = (3.5, 0.5)
    second = observe(ext, function, x, varying=first.facts)
    assert not second.unsound and second.symbolic == symbolic
    w.D["k"] = (4.5, 0.5)
    assert second.facts.numbers() == (list(left) if left else None)


def test_ints_have_objects_of_their_own():
    ext, (w, write) = built(), world(2.5)
    facts = None
    for value, expected in ((3, []), (4, [4]), (1 << 40, [1 << 40])):
        write("attribute", value)
        facts = observe(ext, w.attribute, Tensor(seconds=1), varying=facts).facts
        assert facts.numbers() == expected
    write("attribute", 1 << 70)
    assert facts.numbers() is None
